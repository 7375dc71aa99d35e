"""Define what decoders and encoders of the Messages dialect share: stop reasons, usage, tool inputs and messages."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from toolgate.conversation.arguments import NO_ARGUMENTS, arguments_object, arguments_text
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import NO_EXTRA, Extra, ToolCall
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.wire.fields import token_count
from toolgate.wire.jsontext import encode

NAME = "anthropic"
ID_PATTERN = r"[a-zA-Z0-9_-]{1,128}"
# The name of the MCP server that a client sees for the tools that the gateway runs.
OWN_SERVER = "toolgate"
# The type in the extra of a part that belongs to a block which an earlier part carries.
DOCUMENT_PIECE = "document_piece"

# Anthropic's stop reasons, and OpenAI's, which compatible servers send.
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
_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "pause": "pause_turn",
}
_OFFICIAL = frozenset(_REASONS) - {"stop", "tool_calls", "length", "content_filter"}


def read_reason(stop_reason: str) -> FinishReason:
    """Decode a stop reason; an unknown one is decoded as `stop`."""
    return _REASONS.get(stop_reason.lower(), "stop")


def write_reason(reason: FinishReason, stop_sequence: str | None = None, refused: bool = False) -> str:
    """Encode a finish reason as a stop reason."""
    if reason == "stop":
        return "refusal" if refused else "stop_sequence" if stop_sequence is not None else "end_turn"
    return _STOP_REASONS[reason]


def is_official(stop_reason: str) -> bool:
    """Return whether clients know this stop reason."""
    return stop_reason in _OFFICIAL


def is_peculiar(stop_reason: str) -> bool:
    """Return whether a stop reason has more information than the finish reason it is decoded to."""
    return is_official(stop_reason) and stop_reason not in _STOP_REASONS.values() and stop_reason != "stop_sequence"


def extra_of(rest: Mapping[str, Any]) -> Extra:
    """Return the unread fields of an object as the extra of this dialect."""
    return {NAME: rest} if rest else NO_EXTRA


def read_usage(value: Any, before: Usage | None = None) -> Usage | None:
    """Decode the token counts; those `before` stay where they are higher, or the others missing.

    Anthropic does not include cached input in `input_tokens`, but `Usage.input` does.
    """
    if type(value) is not dict:
        return before
    output, fresh = token_count(value.get("output_tokens")), token_count(value.get("input_tokens"))
    read = token_count(value.get("cache_read_input_tokens"))
    written = token_count(value.get("cache_creation_input_tokens"))
    if output is None and fresh is None and read is None and written is None:
        return before
    known = before or Usage()
    missing: Literal["input", "output"] | None = None
    if fresh is None and read is None and written is None and (before is None or before.missing == "input"):
        missing = "input"
    elif output is None and (before is None or before.missing == "output"):
        missing = "output"
    # Compatible servers count the input only at the end, and send zeros in `message_start`.
    read = read or known.cache_read
    written = written or known.cache_write
    fresh = fresh or known.input - known.cache_read - known.cache_write
    details = value.get("output_tokens_details")
    reasoning = token_count(details.get("thinking_tokens")) if type(details) is dict else 0
    output, reasoning = output or known.output, reasoning or known.reasoning
    return Usage(fresh + read + written, output, read, written, reasoning, missing=missing).following(before)


def write_usage(usage: Usage) -> dict[str, Any]:
    """Encode the token counts that both SDKs require, with cached input apart."""
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
    """Decode the input of a call to argument text; what `write_input` wrapped is unwrapped."""
    match value:
        case {"INVALID_JSON": str(text)} if len(value) == 1:
            return text
        case None:
            return NO_ARGUMENTS
        case _:
            return arguments_text(value).strip() or NO_ARGUMENTS


def write_input(call: ToolCall) -> msgspec.Raw | dict[str, str]:
    """Encode arguments as the object that an input must be; incomplete or invalid ones are wrapped in one."""
    if call.freeform:
        return {"input": call.arguments}
    return arguments_object(call.arguments) if call.complete else {"INVALID_JSON": call.arguments}


def write_message(
    metadata: AnswerMetadata,
    content: list[dict[str, Any]],
    reason: str | None,
    stop_sequence: str | None,
    usage: Usage,
) -> dict[str, Any]:
    """Encode the message object of an answer, at its start or when it is complete."""
    return {
        "id": metadata.id,
        "type": "message",
        "role": "assistant",
        "model": metadata.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop_sequence,
        "usage": write_usage(usage),
    }


def event_bytes(event: dict[str, Any]) -> bytes:
    """Encode one event of the stream."""
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + encode(event) + b"\n\n"
