"""Decode content blocks of requests into parts.

A block that any model can read as text, but that cannot be restored from that text, is kept complete in `extra`: an
upstream of this dialect gets the block, every other one the text. A `type` in the extra of a text part marks such a block.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.message import Media, Opaque, Part, Reasoning, ReasoningSignature, Text, ToolCall, ToolResult
from toolgate.conversation.reasoning_envelope import unwrap_signature
from toolgate.dialects.anthropic.shared_codec import NAME, OWN_SERVER, extra_of, read_input
from toolgate.wire.fields import Fields


def read_content(fields: Fields, name: str) -> list[Part]:
    """Decode a field that is a string or a list of blocks; an empty string has no parts."""
    value = fields.raw(name)
    if value is None or value == "":
        return []
    if type(value) is str:
        return [Text(value)]
    if type(value) is not list:
        raise fields.wrong(name, "a string or a list of blocks")
    return [_block(Fields(block, f"{fields.at(name)}[{i}]")) for i, block in enumerate(value)]


def _block(fields: Fields) -> Part:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "text":
            return Text(fields.text("text") or "", extra_of(fields.rest))
        case "image":
            return _media(fields, whole, "image")
        case "document" if type(whole.get("source")) is dict and whole["source"].get("type") in ("text", "content"):
            return Text(_document_text(whole), {NAME: whole})
        case "document":
            return _media(fields, whole, "file")
        case "tool_use" | "tool_result" | "mcp_tool_use" as kind:
            return _tool_block(kind, fields, whole)
        case "thinking":
            text, signature = fields.text("thinking") or "", fields.text("signature")
            return Reasoning(text, _signature("signature", signature), extra_of(fields.rest))
        case "redacted_thinking":
            return Reasoning("", _signature("data", fields.text("data")), extra_of(fields.rest))
        case "search_result":
            return Text(_document_text(whole), {NAME: whole})
        case None:
            raise fields.wrong("type", "the type of a block")
        case _:
            return Opaque(NAME, whole)


def _tool_block(kind: str, fields: Fields, whole: dict[str, Any]) -> Part:
    if kind == "tool_result":
        call_id, is_error = fields.required_text("tool_use_id"), fields.flag("is_error")
        content = tuple([_result_content(part) for part in read_content(fields, "content")])
        return ToolResult(call_id, content, is_error, extra=extra_of(fields.rest))
    if kind == "mcp_tool_use" and whole.get("server_name") != OWN_SERVER:
        return Opaque(NAME, whole)
    id, name, arguments = fields.required_text("id"), fields.required_text("name"), read_input(fields.raw("input"))
    if kind == "mcp_tool_use":
        return ToolCall(id, name, arguments, "gateway")
    return ToolCall(id, name, arguments, extra=extra_of(fields.rest))


def _signature(field: str, value: str | None) -> ReasoningSignature | None:
    if not value:
        return None
    return unwrap_signature(value) or ReasoningSignature(NAME, {field: value})


def _result_content(part: Part) -> Text | Media:
    """Return a part of a result; a block that only Anthropic knows becomes a text for other upstreams."""
    match part:
        case Text() | Media():
            return part
        case Opaque(_, {"type": "tool_reference", "tool_name": str(name)} as block):
            return Text(f"The tool {name} is now available.", {NAME: block})
        case Opaque(_, block):
            return Text(f"[{block.get('type')}]", {NAME: block})
        case _:
            return Text("")


def gateway_result(part: Part, gateway_calls: Collection[str]) -> Part:
    """Decode the result of a call that the gateway ran; any other part is returned unchanged."""
    match part:
        case Opaque(_, {"type": "mcp_tool_result", "tool_use_id": str(call_id)} as block) if call_id in gateway_calls:
            content = read_content(Fields({"content": block.get("content")}), "content")
            is_error = block.get("is_error")
            return ToolResult(
                call_id, tuple([_result_content(one) for one in content]), is_error if type(is_error) is bool else None
            )
        case _:
            return part


def _media(fields: Fields, whole: dict[str, Any], kind: Any) -> Part:
    """Decode media from a known source; a block with another source is kept unchanged."""
    source = fields.raw("source")
    name = fields.text("title") if kind == "file" else None
    match source:
        case {"type": "base64", "data": str(data)}:
            return Media(kind, source.get("media_type"), data, name=name, extra=extra_of(fields.rest))
        case {"type": "url", "url": str(url)}:
            return Media(kind, url=url, name=name, extra=extra_of(fields.rest))
        case {"type": "file", "file_id": str(file_id)}:
            return Media(kind, file_id=file_id, name=name, extra=extra_of(fields.rest))
        case dict():
            return Opaque(NAME, whole)
        case _:
            raise fields.wrong("source", "an object with a type")


def _document_text(block: dict[str, Any]) -> str:
    """Return a document or search result as text: its title, its source and its content."""
    source, content = block.get("source"), block.get("content")
    if type(source) is dict:
        content = source.get("data") or source.get("content")
    blocks = [{"text": content}] if type(content) is str else content if type(content) is list else []
    texts = [one.get("text") for one in blocks if type(one) is dict]
    return "\n".join(
        [line for line in (block.get("title"), block.get("context"), source, *texts) if line and type(line) is str]
    )
