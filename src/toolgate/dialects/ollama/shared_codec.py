"""Define what decoders and encoders of the Ollama dialect share: lines, calls, finish reasons, usage and dates."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from toolgate.conversation.arguments import arguments_object, arguments_text
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import ReasoningSignature, ToolCall
from toolgate.wire.fields import missing_count, token_count
from toolgate.wire.jsontext import encode

NAME = "ollama"
# The key in a request's extra that marks it as sent there, and holds the fields that only Ollama understands.
PROMPT = "/api/generate"

# Ollama signs nothing; this marks reasoning as its own, so that it becomes `thinking` again after other dialects.
THINKING = ReasoningSignature(NAME, {"field": "thinking"})

_REASONS: dict[str, FinishReason] = {"length": "length", "content_filter": "content_filter", "tool_calls": "tool_calls"}
# Characters that Python's `str.splitlines`, and thereby the official client, takes for the end of a line.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
# The first bytes of each format, in base64.
_MAGIC = {"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}


def encode_line(value: Any) -> bytes:
    """Encode JSON without any character that a client may take for the end of a line; no newline is added."""
    text = encode(value)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            text = text.replace(raw, escaped)
    return text


def write_call(call: ToolCall, id: str, index: int) -> dict[str, Any]:
    """Return a call as an entry of `tool_calls`."""
    own = dict(call.extra.get(NAME, {}))
    function = {
        "index": index,
        "name": call.name,
        "arguments": write_arguments(call.arguments),
        **own.pop("function", {}),
    }
    return {"id": id, "function": function, **own}


def write_arguments(text: str) -> msgspec.Raw | dict[str, str]:
    """Encode arguments as an object, unchanged but for line ends."""
    value = arguments_object(text)
    if isinstance(value, dict) or not ("\n" in text or "\r" in text):
        return value
    # Between tokens a newline is a blank, and inside a string JSON allows none.
    return msgspec.Raw(bytes(value).replace(b"\n", b" ").replace(b"\r", b" "))


def read_arguments(value: Any) -> str:
    """Decode arguments to JSON text; what `write_arguments` wrapped is unwrapped."""
    text = arguments_text(value)
    if not text.startswith('{"INVALID_JSON":'):
        return text
    try:
        return msgspec.json.decode(text, type=_Wrapped).INVALID_JSON
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    INVALID_JSON: str


def read_reason(done_reason: Any) -> FinishReason:
    """Decode `done_reason`; an unknown or missing one is decoded as `stop`."""
    return _REASONS.get(done_reason, "stop") if type(done_reason) is str else "stop"


def write_reason(reason: FinishReason) -> str:
    """Encode a finish reason; Ollama sends `stop` also for a turn that calls tools."""
    return reason if reason in ("length", "content_filter") else "stop"


def read_usage(line: Mapping[str, Any]) -> Usage | None:
    """Decode the token counts of a last line; None if there are none."""
    input, output = token_count(line.get("prompt_eval_count")), token_count(line.get("eval_count"))
    if input is None and output is None:
        return None
    return Usage(input or 0, output or 0, missing=missing_count(input, output))


def write_measures(usage: Usage, times: tuple[float, float]) -> dict[str, int]:
    """Encode counts and durations of a last line; the prompt is assumed to be read when the first event arrives."""
    read, spent = [int(seconds * 1e9) for seconds in times]
    return {
        "total_duration": spent,
        "load_duration": 0,
        "prompt_eval_count": usage.input,
        "prompt_eval_duration": read,
        "eval_count": usage.output,
        "eval_duration": spent - read,
    }


def write_date(seconds: int) -> str:
    """Encode a second as Ollama does."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def image_mime(data: str) -> str | None:
    """Return the media type of a base64 image by its first bytes, which Ollama does not send and other dialects need."""
    return next((mime for magic, mime in _MAGIC.items() if data.startswith(magic)), None)
