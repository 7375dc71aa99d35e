"""Content blocks as clients send them, read into parts.

A block that we can show to any model as text, but not say again from that text, keeps itself whole in `extra`: an upstream
of this dialect gets the block, every other one the text. `type` in a text part's own extra is the sign of it.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.message import Media, Opaque, Part, Reasoning, Seal, Text, ToolCall, ToolResult
from toolgate.conversation.seals import disclose
from toolgate.dialects.anthropic.words import NAME, OWN_SERVER, extra_of, read_input
from toolgate.wire.fields import Fields


def read_content(fields: Fields, name: str) -> list[Part]:
    """The parts of a field that is a string or a list of blocks; an empty string is no part at all."""
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
        case "document":
            return _document(fields, whole)
        case "tool_use":
            return _call(fields)
        case "tool_result":
            return _result(fields)
        case "thinking":
            text, signature = fields.text("thinking") or "", fields.text("signature")
            return Reasoning(text, _seal("signature", signature), extra_of(fields.rest))
        case "redacted_thinking":
            return Reasoning("", _seal("data", fields.text("data")), extra_of(fields.rest))
        case "mcp_tool_use" if whole.get("server_name") == OWN_SERVER:
            return ToolCall(
                fields.required_text("id"), fields.required_text("name"), read_input(whole.get("input")), "gateway"
            )
        case "search_result":
            return Text(_spoken(whole), {NAME: whole})
        case None:
            raise fields.wrong("type", "the type of a block")
        case _:
            return Opaque(NAME, whole)


def _seal(field: str, value: str | None) -> Seal | None:
    if not value:
        return None
    return disclose(value) or Seal(NAME, {field: value})


def _call(fields: Fields) -> ToolCall:
    id, name = fields.required_text("id"), fields.required_text("name")
    arguments = read_input(fields.raw("input"))
    return ToolCall(id, name, arguments, extra=extra_of(fields.rest))


def _result(fields: Fields) -> ToolResult:
    call_id, is_error = fields.required_text("tool_use_id"), fields.flag("is_error")
    content = tuple([_shown(part) for part in read_content(fields, "content")])
    return ToolResult(call_id, content, is_error, extra=extra_of(fields.rest))


def _shown(part: Part) -> Text | Media:
    """A piece of a result; a kind that only Anthropic knows is put in words for the others."""
    match part:
        case Text() | Media():
            return part
        case Opaque(_, {"type": "tool_reference", "tool_name": str(name)} as block):
            return Text(f"The tool {name} is now available.", {NAME: block})
        case Opaque(_, block):
            return Text(f"[{block.get('type')}]", {NAME: block})
        case _:
            return Text("")


def own_result(part: Part, ours: Collection[str]) -> Part:
    """The result of a call that the gateway ran, taken out of the client's copy of the answer."""
    match part:
        case Opaque(_, {"type": "mcp_tool_result", "tool_use_id": str(call_id)} as block) if call_id in ours:
            content = read_content(Fields({"content": block.get("content")}), "content")
            is_error = block.get("is_error")
            return ToolResult(
                call_id, tuple([_shown(piece) for piece in content]), is_error if type(is_error) is bool else None
            )
        case _:
            return part


def _document(fields: Fields, whole: dict[str, Any]) -> Part:
    match whole.get("source"):
        case {"type": "text" | "content"}:
            return Text(_spoken(whole), {NAME: whole})
        case _:
            return _media(fields, whole, "file")


def _media(fields: Fields, whole: dict[str, Any], kind: Any) -> Part:
    """Media from a source we know; any other source is kept as it is."""
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


def _spoken(block: dict[str, Any]) -> str:
    """A document or search result in words: its title, where it is from, and its text."""
    source, content = block.get("source"), block.get("content")
    if type(source) is dict:
        content = source.get("data") or source.get("content")
    pieces = [{"text": content}] if type(content) is str else content if type(content) is list else []
    texts = [piece.get("text") for piece in pieces if type(piece) is dict]
    return "\n".join(
        [line for line in (block.get("title"), block.get("context"), source, *texts) if line and type(line) is str]
    )
