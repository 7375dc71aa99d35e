"""Decode content blocks of requests into parts.

A block that any model can read as text, but that cannot be restored from that text, is kept complete in `extra`: an
upstream of this dialect gets the block, every other one the text. A `type` in the extra of a part marks such a block; the
parts after the first of a document with pictures are marked as its pieces, which an upstream of this dialect has already.
"""

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.message import Media, Opaque, Part, Reasoning, ReasoningSignature, Text, ToolCall, ToolResult
from toolgate.conversation.reasoning_envelope import unwrap_signature
from toolgate.dialects.anthropic.shared_codec import DOCUMENT_PIECE, NAME, OWN_SERVER, extra_of, read_input
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
    return [part for i, block in enumerate(value) for part in _parts(Fields(block, f"{fields.at(name)}[{i}]"))]


def _parts(fields: Fields) -> tuple[Part, ...]:
    """Decode a block; a document with pictures has several parts."""
    match fields.rest:
        case {"type": "document", "source": {"type": "content", "content": list(content)}} if any(
            map(_picture, content)
        ):
            return _document_with_pictures(dict(fields.rest), content)
        case _:
            return (_block(fields),)


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


def _picture(block: Any) -> Media | None:
    """Decode a block inside a document if it is a picture from a known source."""
    if type(block) is not dict or block.get("type") != "image" or type(block.get("source")) is not dict:
        return None
    part = _media(Fields(dict(block)), block, "image")
    return part if isinstance(part, Media) else None


def _document_with_pictures(whole: dict[str, Any], content: list[Any]) -> tuple[Part, ...]:
    """Decode a document into its texts and pictures, in their order; the first of them carries the block."""
    parts: list[Text | Media] = []
    lines = _document_text({**whole, "source": None})
    for block in content:
        if (picture := _picture(block)) is not None:
            parts += [Text(lines), picture] if lines else [picture]
            lines = ""
        elif text := _document_text({"content": [block]}):
            lines = f"{lines}\n{text}" if lines else text
    parts += [Text(lines)] if lines else []
    marks = [whole, *[{"type": DOCUMENT_PIECE}] * (len(parts) - 1)]
    return tuple([replace(part, extra={NAME: mark}) for part, mark in zip(parts, marks, strict=True)])


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
