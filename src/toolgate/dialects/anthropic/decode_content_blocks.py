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
    parts: list[Part] = []
    for number, given in enumerate(value):
        block = Fields(given, f"{fields.at(name)}[{number}]")
        match given:
            # The only block that becomes several parts, because other upstreams take no pictures inside a document.
            case {"type": "document", "source": {"type": "content", "content": list(content)}} if any(
                map(_picture, content)
            ):
                parts += _document_with_pictures(dict(given), content)
            case _:
                parts.append(_block(block))
    return parts


def _block(fields: Fields) -> Part:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "text":
            return Text(fields.text("text") or "", extra_of(fields.rest))
        case "image":
            return _media(fields, whole, "image")
        # A document of text is text to other upstreams, which take no other documents than files.
        case "document" if type(whole.get("source")) is dict and whole["source"].get("type") in ("text", "content"):
            return Text(_document_text(whole), {NAME: whole})
        case "document":
            return _media(fields, whole, "file")
        case "tool_result":
            call_id, is_error = fields.required_text("tool_use_id"), fields.flag("is_error")
            result = tuple([_result_content(part) for part in read_content(fields, "content")])
            return ToolResult(call_id, result, is_error, extra=extra_of(fields.rest))
        case "tool_use":
            id, name, arguments = fields.required_text("id"), fields.required_text("name"), fields.raw("input")
            return ToolCall(id, name, read_input(arguments), extra=extra_of(fields.rest))
        case "mcp_tool_use" if whole.get("server_name") == OWN_SERVER:
            # A call that the gateway ran and showed as that of a server; a call of any other server stays unchanged.
            id, name, arguments = fields.required_text("id"), fields.required_text("name"), fields.raw("input")
            return ToolCall(id, name, read_input(arguments), "gateway")
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


def _signature(field: str, value: str | None) -> ReasoningSignature | None:
    if not value:
        return None
    # Signatures of other dialects reach a Messages client in an envelope, in the place of Anthropic's own.
    return unwrap_signature(value) or ReasoningSignature(NAME, {field: value})


def _result_content(part: Part) -> Text | Media:
    """Return a part of a result; a block that only Anthropic knows becomes a text for other upstreams."""
    match part:
        case Text() | Media():
            return part
        case Opaque(_, {"type": "tool_reference", "tool_name": str(name)} as block):  # what a tool search has found
            return Text(f"The tool {name} is now available.", {NAME: block})
        case Opaque(_, block):
            return Text(f"[{block.get('type')}]", {NAME: block})
        case _:
            return Text("")


def gateway_result(part: Part, gateway_calls: Collection[str]) -> Part:
    """Decode the result of a call that the gateway ran; any other part is returned unchanged."""
    match part:
        # The block does not name its server, so the call tells whether it was ours.
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
            mime = source.get("media_type")
            if mime is not None and type(mime) is not str:
                raise fields.wrong("source.media_type", "a string")
            return Media(kind, mime, data, name=name, extra=extra_of(fields.rest))
        case {"type": "url", "url": str(url)}:
            return Media(kind, url=url, name=name, extra=extra_of(fields.rest))
        case {"type": "file", "file_id": str(file_id)}:
            return Media(kind, file_id=file_id, name=name, extra=extra_of(fields.rest))
        case dict():  # a source that only Anthropic may know
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
    # An Anthropic upstream gets the block from the first part, and nothing from the others.
    marks = [whole, *[{"type": DOCUMENT_PIECE}] * (len(parts) - 1)]
    return tuple([replace(part, extra={NAME: mark}) for part, mark in zip(parts, marks, strict=True)])


def _document_text(block: dict[str, Any]) -> str:
    """Return a document or search result as text: its title, its source and its content."""
    # The source of a search result is a URL; that of a document is an object with the content.
    source, content = block.get("source"), block.get("content")
    if type(source) is dict:
        content = source.get("data") or source.get("content")
    blocks = [{"text": content}] if type(content) is str else content if type(content) is list else []
    texts = [one.get("text") for one in blocks if type(one) is dict]
    return "\n".join(
        [line for line in (block.get("title"), block.get("context"), source, *texts) if line and type(line) is str]
    )
