"""Ollama's answers, read line by line, be they of `/api/chat` or of `/api/generate`; a whole answer is read as one line."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from toolgate.conversation.arguments import as_text
from toolgate.conversation.assemble import Assembler
from toolgate.conversation.errors import Garbled, Unavailable
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.message import NO_EXTRA, Extra, Media
from toolgate.dialects.ollama.words import NAME, THINKING, image_mime, read_arguments, read_reason, read_usage
from toolgate.dialects.refusals import read_error_object
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import decode_event

_UNDERSTOOD = frozenset(
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


class Line(msgspec.Struct, frozen=True):
    """One line, and the argument texts of its calls as they are spelled in it."""

    fields: dict[str, Any]
    arguments: tuple[str, ...]

    @property
    def said(self) -> Mapping[str, Any]:
        """Where the words are: in a message, or beside everything else in an answer to a prompt."""
        message = self.fields.get("message")
        return message if type(message) is dict else self.fields

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The entries of `tool_calls`."""
        entries = self.said.get("tool_calls") or []
        if type(entries) is not list or not all(type(entry) is dict for entry in entries):
            raise Garbled("The upstream sent a tool call that is not an object.")
        return entries


def read_line(frame: Frame) -> Line | None:
    """The line in a frame, unless it is blank; raises UpstreamFault if it tells of a failure."""
    data = frame.data.strip()
    if not data:
        return None
    value = decode_event(data)
    exact = _exact_arguments(data) if b'"tool_calls"' in data else None
    return line_of(value, exact)


def line_of(value: Any, exact: tuple[str, ...] | None = None) -> Line:
    """A parsed line or whole answer; raises UpstreamFault if it tells of a failure."""
    if type(value) is not dict:
        raise Garbled("The upstream sent a line that is not an object.")
    if value.get("error"):
        fault = read_error_object(value["error"])
        fault.usage = read_usage(value)
        raise fault
    line = Line(value, exact or ())
    calls = line.calls
    if len(line.arguments) == len(calls):
        return line
    return Line(value, tuple([read_arguments(_function(entry).get("arguments")) for entry in calls]))


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


_decode_calls = msgspec.json.Decoder(_Answer).decode


def _exact_arguments(data: bytes) -> tuple[str, ...] | None:
    """The arguments as they are spelled, so that no number is rounded on the way; None if the line is too odd for that."""
    try:
        answer = _decode_calls(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    calls = (answer.message.tool_calls if answer.message else answer.tool_calls) or []
    texts = [bytes(call.function.arguments).decode() for call in calls]
    return tuple([_read_exact(text) for text in texts])


def _read_exact(text: str) -> str:
    """The arguments that some JSON spells: an object as it stands there, the text in a string."""
    if text.startswith('"'):
        return read_arguments(msgspec.json.decode(text))
    return "" if text == "null" else read_arguments(text)


class OllamaDecoder:
    """Reads the lines of one answer."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self.usage: Usage | None = None
        self._parts = Assembler(tools)
        self._calls = 0

    def feed(self, frame: Frame) -> list[StepEvent]:
        """What this frame makes certain."""
        line = None if self.done else read_line(frame)
        return self.read(line) if line else []

    def read(self, line: Line) -> list[StepEvent]:
        """What this line makes certain."""
        parts, said = self._parts, line.said
        parts.start(None, line.fields.get("model") or None)
        if thought := said.get("thinking"):
            parts.reasoning(str(thought))
            parts.seal(THINKING)
        content = said.get("content" if said is not line.fields else "response")
        if type(content) is str:
            parts.text(content)
            if "logprobs" in line.fields:
                parts.logprobs(line.fields["logprobs"])
        for image in said.get("images") or ():
            if type(image) is str:
                parts.whole(Media("image", image_mime(image), image))
        for entry, arguments in zip(line.calls, line.arguments, strict=True):
            self._call(entry, arguments)
        if line.fields.get("done") is True:
            self._finish(line.fields)
        return parts.take()

    def end(self) -> list[StepEvent]:
        """What the end of the stream makes certain."""
        if not self.done:
            raise Garbled("The upstream's stream ended before the answer was complete.")
        return []

    def _call(self, entry: Mapping[str, Any], arguments: str) -> None:
        """A call comes whole, so it is over as soon as it is read."""
        self._calls += 1
        function = _function(entry)
        self._parts.call(
            self._calls,
            id=as_text(entry.get("id")) or None,
            name=as_text(function.get("name")) or None,
            arguments=arguments,
            extra=_call_extra(entry, function),
        )
        self._parts.end_call(self._calls)

    def _finish(self, fields: Mapping[str, Any]) -> None:
        self.usage = read_usage(fields)
        word = fields.get("done_reason")
        if word in ("load", "unload"):
            raise Unavailable("The upstream loaded the model but did not answer.", code="upstream_empty")
        self.done = True
        rest = {name: value for name, value in fields.items() if name not in _UNDERSTOOD}
        self._parts.end(read_reason(word), self.usage, extra={NAME: rest} if rest else NO_EXTRA)


def _call_extra(entry: Mapping[str, Any], function: Mapping[str, Any]) -> Extra:
    own = {name: value for name, value in entry.items() if name not in ("id", "type", "function")}
    beside = {name: value for name, value in function.items() if name not in ("index", "name", "arguments")}
    if beside:
        own["function"] = beside
    return {NAME: own} if own else NO_EXTRA
