"""How much work a request or an answer is, roughly: what decides whether it is encoded on the event loop or beside it."""

from collections.abc import Sequence

from toolgate.conversation.message import Media, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest

_PART = 64  # characters that cost about as much as a part does by itself


def is_larger(request: ModelRequest, characters: int) -> bool:
    """Return whether messages and tools come to more than so many characters; stops counting once they do."""
    size = _PART * len(request.tools)
    for message in request.messages:
        size += _PART
        for part in message.parts:
            size += _PART + (len(part.text) if type(part) is Text else _characters(part))
        if size > characters:
            return True
    return size > characters


def are_larger(parts: Sequence[Part], characters: int) -> bool:
    """Return whether the parts of an answer come to more than so many characters."""
    return sum([_PART + _characters(part) for part in parts]) > characters


def _characters(part: Part) -> int:
    match part:
        case ToolCall():
            return len(part.arguments)
        case ToolResult():
            return sum(_PART + _characters(inner) for inner in part.content)
        case Media():
            return len(part.data or "")
        case _:
            return len(getattr(part, "text", ""))
