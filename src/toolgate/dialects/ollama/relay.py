"""Ollama to Ollama: lines pass as they came, and only what breaks clients is mended.

Mended are missing models and dates, content that is not text, arguments that are not objects, empty lists of calls, and a
last line without its reason. Everything else stays as it is. A decoder listens, so that a relayed answer fails exactly
where a translated one would.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.arguments import as_text
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import Delta, FinishReason, PartEnd, PartStart, StepEnd, StepEvent, Usage
from toolgate.conversation.message import Part, Reasoning, ToolCall
from toolgate.conversation.names import CallNames
from toolgate.dialects.dialect import PassedText, Reply
from toolgate.dialects.ollama.server import encode_stream_error
from toolgate.dialects.ollama.stream import Line, OllamaDecoder, read_line
from toolgate.dialects.ollama.words import encode_line, write_arguments, write_date
from toolgate.wire.frames import Frame


class OllamaRelay:
    """Passes the lines of one answer on."""

    def __init__(self, decoder: OllamaDecoder, declared: Collection[str], reply: Reply) -> None:
        self.done = False
        self.names = CallNames(declared)
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.calls = 0
        self._decoder = decoder
        self._reply = reply
        self._passed = PassedText()
        self._thinking = False
        self._held: dict[str, Any] | None = None  # the last line for want of usage

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete without usage."""
        return self._held is not None

    def received(self) -> list[Part]:
        """The texts of all lines so far."""
        return self._passed.parts()

    def feed(self, frame: Frame) -> bytes:
        """The line as the client should see it."""
        line = None if self.done else read_line(frame)
        if line is None:
            return b""
        for entry in line.calls:
            entry["function"]["name"] = self.names.correct(as_text(entry["function"].get("name")))
        self._hear(self._decoder.read(line))
        self.done = self._decoder.done
        told = mend(line, self._reply)
        if self.done and self.usage is None:
            self._held = told
            return b""
        return encode_line(told) + b"\n"

    def end_with(self, usage: Usage) -> bytes:
        """The last line, with this usage."""
        told, self.usage, self._held = self._held or {}, usage, None
        return encode_line({**told, "prompt_eval_count": usage.input, "eval_count": usage.output}) + b"\n"

    def error(self, error: ToolgateError) -> bytes:
        """The error as the last line."""
        return encode_stream_error(error)

    def end(self) -> bytes:
        """Nothing is left to say."""
        self._decoder.end()
        return b""

    def _hear(self, events: list[StepEvent]) -> None:
        passed = self._passed
        for event in events:
            match event:
                case Delta(text):
                    (passed.thoughts if self._thinking else passed.text).append(text)
                case PartStart(part):
                    self._thinking = isinstance(part, Reasoning)
                case PartEnd(ToolCall(name=name, arguments=arguments)):
                    self.calls += 1
                    passed.calls[self.calls] = [name, arguments]
                case StepEnd(reason, usage):
                    self.reason, self.usage = reason, usage


def mend(line: Line, reply: Reply) -> dict[str, Any]:
    """A line, or a whole answer, as a client should see it."""
    fields = dict(line.fields)
    fields["model"] = fields.get("model") or reply.model
    fields["created_at"] = fields.get("created_at") or write_date(reply.created)
    fields["done"] = fields.get("done") is True
    if fields["done"]:
        fields["done_reason"] = fields.get("done_reason") or "stop"
    if type(fields.get("message")) is dict:
        message = {"role": "assistant", **fields["message"]}
        _mend_words(message, "content", line)
        fields["message"] = message
    else:
        _mend_words(fields, "response", line)
    return fields


def _mend_words(words: dict[str, Any], content: str, line: Line) -> None:
    if type(words.get(content)) is not str:
        words[content] = ""
    if line.calls:
        words["tool_calls"] = [_mend_call(entry, text) for entry, text in zip(line.calls, line.arguments, strict=True)]
    else:
        words.pop("tool_calls", None)


def _mend_call(entry: dict[str, Any], arguments: str) -> dict[str, Any]:
    return {**entry, "function": {**entry["function"], "arguments": write_arguments(arguments)}}
