"""The vocabulary that both halves of the Ollama dialect share: lines, reasons, counts, pictures and dates."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from toolgate.conversation.arguments import as_object, as_text
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import Seal, ToolCall
from toolgate.wire.fields import token_count
from toolgate.wire.jsontext import encode

NAME = "ollama"
PROMPT = "/api/generate"
"""Marks a request as one made there, and holds the fields that only Ollama understands."""

THINKING = Seal(NAME, {"field": "thinking"})
"""Ollama signs nothing; this marks reasoning as its own, so that it finds back to `thinking` through other dialects."""

_REASONS: dict[str, FinishReason] = {"length": "length", "content_filter": "content_filter", "tool_calls": "tool_calls"}
# What Python's `str.splitlines` takes for the end of a line, and with it the official client's reader.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
_MAGIC = {"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}


def encode_line(value: Any) -> bytes:
    """JSON that every reader of lines takes for one line; the newline is not part of it."""
    text = encode(value)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            text = text.replace(raw, escaped)
    return text


def write_call(call: ToolCall, id: str, index: int) -> dict[str, Any]:
    """A call as an entry of `tool_calls`."""
    own = dict(call.extra.get(NAME, {}))
    function = {
        "index": index,
        "name": call.name,
        "arguments": write_arguments(call.arguments),
        **own.pop("function", {}),
    }
    return {"id": id, "function": function, **own}


def write_arguments(text: str) -> msgspec.Raw | dict[str, str]:
    """Arguments as an object, spelled as they are but on one line."""
    value = as_object(text)
    if isinstance(value, dict) or not ("\n" in text or "\r" in text):
        return value
    # Between the tokens a newline is a blank, and within a string JSON allows none.
    return msgspec.Raw(bytes(value).replace(b"\n", b" ").replace(b"\r", b" "))


def read_arguments(value: Any) -> str:
    """Arguments as JSON text; what `write_arguments` had to wrap is unwrapped."""
    text = as_text(value)
    if not text.startswith('{"INVALID_JSON":'):
        return text
    try:
        return msgspec.json.decode(text, type=_Wrapped).INVALID_JSON
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    INVALID_JSON: str


def read_reason(word: Any) -> FinishReason:
    """The finish reason behind `done_reason`; an unknown or missing word is a plain stop."""
    return _REASONS.get(word, "stop") if type(word) is str else "stop"


def write_reason(reason: FinishReason) -> str:
    """Ollama says `stop` also of a turn that calls tools."""
    return reason if reason in ("length", "content_filter") else "stop"


def read_usage(line: Mapping[str, Any]) -> Usage | None:
    """The token counts of a last line, or None if it has none."""
    given, made = token_count(line.get("prompt_eval_count")), token_count(line.get("eval_count"))
    return None if given is None and made is None else Usage(given or 0, made or 0)


def write_measures(usage: Usage, times: tuple[float, float]) -> dict[str, int]:
    """Counts and durations of a last line: reading ends, for all that we can see, when the first piece is written."""
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
    """A moment as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def image_mime(data: str) -> str | None:
    """What kind of picture some base64 holds, by its first bytes: Ollama does not say, other dialects must know."""
    return next((mime for magic, mime in _MAGIC.items() if data.startswith(magic)), None)
