"""The vocabulary that both halves of the Messages dialect share: stop reasons, usage, inputs, ids, messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.conversation.arguments import NO_ARGUMENTS, as_object, as_text
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import NO_EXTRA, Extra, ToolCall
from toolgate.dialects.dialect import Reply
from toolgate.wire.fields import token_count
from toolgate.wire.jsontext import encode

NAME = "anthropic"
ID_PATTERN = r"[a-zA-Z0-9_-]{1,128}"
OWN_SERVER = "toolgate"
"""The MCP server under whose name a client sees the tools that the gateway runs."""

_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "stop": "stop",
    "tool_use": "tool_calls",
    "tool_calls": "tool_calls",
    "max_tokens": "length",
    "length": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "content_filter": "content_filter",
    "pause_turn": "pause",
    "compaction": "pause",
}
_WORDS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "pause": "pause_turn",
}
_OFFICIAL = frozenset(_REASONS) - {"stop", "tool_calls", "length", "content_filter"}


def read_reason(word: str) -> FinishReason:
    """The finish reason behind a stop reason; an unknown word is a plain stop."""
    return _REASONS.get(word.lower(), "stop")


def write_reason(reason: FinishReason, stop_sequence: str | None = None, refused: bool = False) -> str:
    """Anthropic's word for a finish reason."""
    if reason == "stop":
        return "refusal" if refused else "stop_sequence" if stop_sequence is not None else "end_turn"
    return _WORDS[reason]


def is_official(word: str) -> bool:
    """Whether clients know this stop reason."""
    return word in _OFFICIAL


def is_peculiar(word: str) -> bool:
    """Whether a stop reason says more than the finish reason it is read as."""
    return is_official(word) and word not in _WORDS.values() and word != "stop_sequence"


def extra_of(rest: Mapping[str, Any]) -> Extra:
    """What is left over, kept for this dialect."""
    return {NAME: rest} if rest else NO_EXTRA


_COUNTS = ("output_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def read_usage(value: Any, before: Usage | None = None) -> Usage | None:
    """The token counts as they now stand: later counts replace earlier ones, but what is left out or zero does not.

    Anthropic counts cached input apart from `input_tokens`, we count it in.
    """
    if type(value) is not dict or all(token_count(value.get(name)) is None for name in _COUNTS):
        return before
    known = before or Usage()
    details = value.get("output_tokens_details")
    read = _count(value, "cache_read_input_tokens") or known.cache_read
    written = _count(value, "cache_creation_input_tokens") or known.cache_write
    fresh = _count(value, "input_tokens") or known.input - known.cache_read - known.cache_write
    return Usage(
        input=fresh + read + written,
        output=_count(value, "output_tokens") or known.output,
        cache_read=read,
        cache_write=written,
        reasoning=(_count(details, "thinking_tokens") if type(details) is dict else 0) or known.reasoning,
    )


def write_usage(usage: Usage) -> dict[str, Any]:
    """The token counts that both SDKs demand, with cached input apart."""
    counts: dict[str, Any] = {
        "input_tokens": max(usage.input - usage.cache_read - usage.cache_write, 0),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return counts


def read_input(value: Any) -> str:
    """The input of a call as argument text; what `write_input` had to wrap is unwrapped."""
    match value:
        case {"INVALID_JSON": str(text)} if len(value) == 1:
            return text
        case None:
            return NO_ARGUMENTS
        case _:
            return as_text(value).strip() or NO_ARGUMENTS


def write_input(call: ToolCall) -> msgspec.Raw | dict[str, str]:
    """The arguments as the object that an input must be; half a call and text that is no object stay recognisable."""
    if call.freeform:
        return {"input": call.arguments}
    return as_object(call.arguments) if call.complete else {"INVALID_JSON": call.arguments}


def write_message(
    reply: Reply, content: list[dict[str, Any]], reason: str | None, stop_sequence: str | None, usage: Usage
) -> dict[str, Any]:
    """The message that an answer is, at its beginning or when it is whole."""
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop_sequence,
        "usage": write_usage(usage),
    }


def event_bytes(event: dict[str, Any]) -> bytes:
    """One event of the stream, under its own name."""
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + encode(event) + b"\n\n"


def _count(value: Mapping[str, Any], name: str) -> int:
    return token_count(value.get(name)) or 0
