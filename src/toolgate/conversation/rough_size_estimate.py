"""Estimate the size of a request or an answer, roughly, in characters and in tokens.

Characters decide whether it is encoded on the event loop or in a thread. Tokens are for a number that must be sent before
anything was counted; the tokenizer is in `upstreams/token_counting_offline.py`.
"""

from collections.abc import Sequence
from typing import Any

from toolgate.conversation.message import Media, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest

_PART = 64  # characters that cost about as much as a part does by itself
_CHARACTERS_PER_TOKEN = 4
_MEDIA = 4_000  # characters that an image, sound or document counts for, in tokens
_TOOL = 400  # characters of a tool's schema


def is_request_larger(request: ModelRequest, characters: int) -> bool:
    """Return whether messages and tools have more than so many characters; stop counting once they do."""
    size = _PART * (len(request.tools) + len(request.messages))
    for message in request.messages:
        for part in message.parts:
            size += _PART + (len(part.text) if type(part) is Text else _characters(part))
        if size > characters:
            return True
    return size > characters


def are_parts_larger(parts: Sequence[Part], characters: int) -> bool:
    """Return whether the parts of an answer have more than so many characters."""
    return sum([_PART + _characters(part) for part in parts]) > characters


def is_json_larger(value: Any, characters: int) -> bool:
    """Return whether decoded JSON has more than so many characters; stop counting once it does."""
    size, left = 0, [value]
    while left and size <= characters:
        inner = left.pop()
        size += _PART
        if type(inner) is str:
            size += len(inner)
        elif type(inner) is list:
            left += inner
        elif type(inner) is dict:
            left += inner.keys()
            left += inner.values()
    return size > characters


def rough_input_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens of this request: four characters to a token."""
    parts = [part for message in request.messages for part in message.parts]
    messages = sum([_MEDIA if isinstance(part, Media) else _characters(part) for part in parts])
    tools = sum([len(tool.name) + len(tool.description or "") + _TOOL for tool in request.tools])
    return (messages + tools) // _CHARACTERS_PER_TOKEN + 1


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
