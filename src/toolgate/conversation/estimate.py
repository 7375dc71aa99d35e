"""A rough size of a request in tokens, for a number that must be sent before anything was counted.

Four characters to a token: cheap enough for every stream. The tokenizer is in `upstreams/tokens.py`.
"""

from collections.abc import Iterable

from toolgate.conversation.message import Media, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest

_CHARACTERS_PER_TOKEN = 4
_MEDIA = 4_000  # characters that an image, sound or document counts for
_TOOL = 400  # characters of a tool's schema


def rough_input_tokens(request: ModelRequest) -> int:
    """About how many tokens the model reads for this request."""
    said = sum([_characters(message.parts) for message in request.messages])
    offered = sum([len(tool.name) + len(tool.description or "") + _TOOL for tool in request.tools])
    return (said + offered) // _CHARACTERS_PER_TOKEN + 1


def _characters(parts: Iterable[Part]) -> int:
    total = 0
    for part in parts:
        match part:
            case Text(text) | Reasoning(text) | Refusal(text):
                total += len(text)
            case ToolCall():
                total += len(part.name) + len(part.arguments)
            case ToolResult():
                total += _characters(part.content)
            case Media():
                total += _MEDIA
    return total
