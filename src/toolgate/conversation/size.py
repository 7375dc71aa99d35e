"""How large a request or an answer is, roughly, in characters and in tokens.

Characters decide whether it is encoded on the event loop or beside it. Tokens are for a number that must be sent before
anything was counted; the tokenizer is in `upstreams/tokens.py`.
"""

from collections.abc import Sequence

from toolgate.conversation.message import Media, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest

_PART = 64  # characters that cost about as much as a part does by itself
_CHARACTERS_PER_TOKEN = 4
_MEDIA = 4_000  # characters that an image, sound or document counts for, in tokens
_TOOL = 400  # characters of a tool's schema


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


def rough_input_tokens(request: ModelRequest) -> int:
    """About how many tokens the model reads for this request: four characters to a token."""
    parts = [part for message in request.messages for part in message.parts]
    said = sum([_MEDIA if isinstance(part, Media) else _characters(part) for part in parts])
    offered = sum([len(tool.name) + len(tool.description or "") + _TOOL for tool in request.tools])
    return (said + offered) // _CHARACTERS_PER_TOKEN + 1


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
