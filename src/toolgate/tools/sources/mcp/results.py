"""What a call of a tool gave back, from MCP's words into ours. Nothing that arrived is dropped in silence."""

import re
from collections.abc import Mapping
from typing import Any

from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import Output, ToolFailure
from toolgate.wire.jsontext import encode

_FEW = 16
_SHORT = 16 * 1024
_SIMPLE = frozenset(("type", "text"))
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]*+={0,2}+\s*+")


def is_small(result: Mapping[str, Any]) -> bool:
    """Whether the event loop may read the result itself."""
    blocks, structured = result.get("content"), result.get("structuredContent")
    if structured is not None or type(blocks) is not list or len(blocks) > _FEW:
        return False
    return all(
        type(block) is dict
        and block.keys() <= _SIMPLE
        and type(text := block.get("text")) is str
        and len(text) <= _SHORT
        for block in blocks
    )


def output(result: Mapping[str, Any]) -> Output:
    """The result of `tools/call`, or ToolFailure where it is none."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        raise ToolFailure("The tool wants to ask the user something, and this gateway cannot pass the question on.")
    if kind != "complete":
        raise ToolFailure("The tool answered in a way that this gateway does not understand.")
    blocks = result.get("content")
    content = [_part(block) for block in blocks] if type(blocks) is list else []
    structured = result.get("structuredContent")
    if structured is not None and not any(isinstance(part, Text) for part in content):
        content.append(Text(_json(structured)))
    meta = result.get("_meta")
    return Output(tuple(content), result.get("isError") is True, structured, meta if type(meta) is dict else {})


def _part(block: Any) -> Text | Media:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image" | "audio" as kind, "data": str(data)} if _BASE64.fullmatch(data):
            return Media(kind, mime=_text(block, "mimeType"), data=data)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return Text(f"{_text(resource, 'uri') or 'resource'}:\n{text}")
        case {"type": "resource", "resource": {"blob": str(data)} as resource} if _BASE64.fullmatch(data):
            return Media("file", mime=_text(resource, "mimeType"), data=data, name=_text(resource, "uri"))
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(_link(uri, block))
        case _:
            return Text(_json(block))


def _link(uri: str, block: Mapping[str, Any]) -> str:
    name = _text(block, "title") or _text(block, "name")
    about = ", ".join(words for words in (_text(block, "mimeType"), _text(block, "description")) if words)
    return (f"{name}: {uri}" if name else uri) + (f" ({about})" if about else "")


def _text(block: Mapping[str, Any], name: str) -> str | None:
    value = block.get(name)
    return value if type(value) is str and value else None


def _json(value: Any) -> str:
    return encode(value).decode()
