"""Decode Ollama's answers of `/api/chat` or `/api/generate` line by line; a whole answer is decoded as one line."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from toolgate.conversation.arguments import arguments_text
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.message import NO_EXTRA, Media
from toolgate.dialects.ollama.shared_codec import NAME, THINKING, image_mime, read_arguments, read_reason, read_usage
from toolgate.dialects.upstream_errors import decode_error_object
from toolgate.wire.jsontext import decode_event
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

# Fields of a last line that are decoded; the others, such as durations, are kept for clients of this dialect.
_KNOWN_FIELDS = frozenset(
    {
        "model",
        "created_at",
        "message",
        "response",
        "thinking",
        "images",
        "tool_calls",
        "done",
        "done_reason",
        "prompt_eval_count",
        "eval_count",
        "logprobs",
    }
)


class OllamaLine(msgspec.Struct, frozen=True):
    """One line, and the argument texts of its calls exactly as they are in it."""

    fields: dict[str, Any]
    arguments: tuple[str, ...]

    @property
    def message(self) -> Mapping[str, Any]:
        """The object with the content: the message, or the line itself in an answer to a prompt."""
        message = self.fields.get("message")
        return message if type(message) is dict else self.fields

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The entries of `tool_calls`."""
        entries = self.message.get("tool_calls") or []
        if type(entries) is not list or not all(type(entry) is dict for entry in entries):
            raise InvalidUpstreamAnswer("The upstream sent a tool call that is not an object.")
        return entries


def read_line(frame: ReceivedStreamFrame) -> OllamaLine | None:
    """Decode the line in a frame; None if it is blank; raise UpstreamError if it reports an error."""
    data = frame.data.strip()
    if not data:
        return None
    value = decode_event(data)
    # Decoded arguments would lose large numbers and repeated keys: the text of the line is used where possible.
    exact = _exact_arguments(data) if b'"tool_calls"' in data else None
    return line_of(value, exact)


def line_of(value: Any, exact: tuple[str, ...] | None = None) -> OllamaLine:
    """Return a decoded line or whole answer; raise UpstreamError if it reports an error."""
    if type(value) is not dict:
        raise InvalidUpstreamAnswer("The upstream sent a line that is not an object.")
    if value.get("error"):
        fault = decode_error_object(value["error"])
        # What was generated before the error is charged as well.
        fault.usage = read_usage(value)
        raise fault
    line = OllamaLine(value, exact or ())
    calls = line.calls
    if len(line.arguments) == len(calls):  # also for the many lines without calls
        return line
    return OllamaLine(value, tuple([read_arguments(_function(entry).get("arguments")) for entry in calls]))


def _function(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    function = entry.get("function")
    return function if type(function) is dict else {}


class _Function(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _Answer(msgspec.Struct):
    message: _Message | None = None
    tool_calls: list[_Call] | None = None


# `Raw` keeps the bytes of the arguments as they are in the line.
_decode_calls = msgspec.json.Decoder(_Answer).decode


def _exact_arguments(data: bytes) -> tuple[str, ...] | None:
    """Return the arguments exactly as they are in the line, so that no number is rounded; None if that fails."""
    try:
        answer = _decode_calls(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    calls = (answer.message.tool_calls if answer.message else answer.tool_calls) or []
    arguments = []
    for call in calls:
        text = bytes(call.function.arguments).decode()
        if text.startswith('"'):  # JSON inside a string, as some servers send it
            arguments.append(read_arguments(msgspec.json.decode(text)))
        else:
            arguments.append("" if text == "null" else read_arguments(text))
    return tuple(arguments)


class OllamaStreamDecoder:
    """Decodes the lines of one answer."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self.usage: Usage | None = None
        self._parts = EventAssembler(tools)
        self._calls = 0

    def feed(self, frame: ReceivedStreamFrame) -> list[StepEvent]:
        """Return the events that this frame makes certain."""
        line = None if self.done else read_line(frame)
        return self.read(line) if line else []

    def read(self, line: OllamaLine) -> list[StepEvent]:
        """Return the events that this line makes certain."""
        parts, message = self._parts, line.message
        parts.start(None, line.fields.get("model") or None)
        if thinking := message.get("thinking"):
            parts.reasoning(str(thinking))
            parts.sign(THINKING)
        content = message.get("content" if message is not line.fields else "response")
        if type(content) is str:
            parts.text(content)
            if "logprobs" in line.fields:
                parts.logprobs(line.fields["logprobs"])
        for image in message.get("images") or ():
            if type(image) is str:
                parts.whole(Media("image", image_mime(image), image))
        for entry, arguments in zip(line.calls, line.arguments, strict=True):
            self._call(entry, arguments)
        if line.fields.get("done") is True:
            self.usage, reason = read_usage(line.fields), line.fields.get("done_reason")
            if reason in ("load", "unload"):  # Ollama ends a request so that came without messages
                raise UpstreamUnavailable("The upstream loaded the model but did not answer.", code="upstream_empty")
            self.done = True
            rest = {name: value for name, value in line.fields.items() if name not in _KNOWN_FIELDS}
            parts.end(read_reason(reason), self.usage, extra={NAME: rest} if rest else NO_EXTRA)
        return parts.take()

    def end(self) -> list[StepEvent]:
        """Return nothing, or raise InvalidUpstreamAnswer if the stream was cut short."""
        if not self.done:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        return []

    def _call(self, entry: Mapping[str, Any], arguments: str) -> None:
        """Add a call; it comes complete, so it ends at once."""
        self._calls += 1
        function = _function(entry)
        own = {name: value for name, value in entry.items() if name not in ("id", "type", "function")}
        inner = {name: value for name, value in function.items() if name not in ("index", "name", "arguments")}
        if inner:
            own["function"] = inner
        self._parts.call(
            self._calls,
            id=arguments_text(entry.get("id")) or None,
            name=arguments_text(function.get("name")) or None,
            arguments=arguments,
            extra={NAME: own} if own else NO_EXTRA,
        )
        self._parts.end_call(self._calls)
