"""Decode the result of a tool call. Content that is not understood is kept as JSON text, not dropped."""

import re
from collections.abc import Mapping
from typing import Any

from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import ToolCallFailed, ToolOutput
from toolgate.wire.jsontext import encode

# Results up to this size are decoded in the event loop, since handing them to a thread would cost more.
_FEW_BLOCKS = 16
_SHORT_CHARS = 16 * 1024
_TEXT_FIELDS = frozenset(("type", "text"))
# Possessive: a large text that is no base64 is refused in one pass.
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]*+={0,2}+\s*+")


def is_small(result: Mapping[str, Any]) -> bool:
    """Return whether the result is a few short texts, which are decoded in the event loop instead of a thread."""
    blocks, structured = result.get("content"), result.get("structuredContent")
    if structured is not None or type(blocks) is not list or len(blocks) > _FEW_BLOCKS:
        return False
    return all(
        type(block) is dict
        and block.keys() <= _TEXT_FIELDS
        and type(text := block.get("text")) is str
        and len(text) <= _SHORT_CHARS
        for block in blocks
    )


def decode_result(result: Mapping[str, Any]) -> ToolOutput:
    """Decode the result of `tools/call`; ToolCallFailed if it is not complete."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        raise ToolCallFailed("The tool wants to ask the user something, and this gateway cannot pass the question on.")
    if kind != "complete":
        raise ToolCallFailed("The tool answered in a way that this gateway does not understand.")
    blocks = result.get("content")
    content = [_decode_block(block) for block in blocks] if type(blocks) is list else []
    structured = result.get("structuredContent")
    # The model reads only the content, and not every server repeats the structured result there.
    if structured is not None and not any(isinstance(part, Text) for part in content):
        content.append(Text(encode(structured).decode()))
    meta = result.get("_meta")
    return ToolOutput(tuple(content), result.get("isError") is True, structured, meta if type(meta) is dict else {})


def _decode_block(block: Any) -> Text | Media:
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
            name = _text(block, "title") or _text(block, "name")
            details = ", ".join(filter(None, (_text(block, "mimeType"), _text(block, "description"))))
            return Text((f"{name}: {uri}" if name else uri) + (f" ({details})" if details else ""))
        case _:
            return Text(encode(block).decode())


def _text(block: Mapping[str, Any], name: str) -> str | None:
    value = block.get(name)
    return value if type(value) is str and value else None
