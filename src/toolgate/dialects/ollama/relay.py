"""Ollama to Ollama: lines pass as they came, and only what breaks clients is mended.

Mended are missing models and dates, content that is not text, arguments that are not objects, empty lists of calls, and a
last line without its reason. Everything else stays as it is. A decoder listens, so that a relayed answer fails exactly
where a translated one would.
"""

from typing import Any

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, PartEnd, StepEnd, StepEvent, Usage
from toolgate.conversation.message import ToolCall
from toolgate.dialects.dialect import Reply
from toolgate.dialects.ollama.server import encode_stream_error
from toolgate.dialects.ollama.stream import Line, OllamaDecoder, read_line
from toolgate.dialects.ollama.words import encode_line, write_arguments, write_date
from toolgate.wire.frames import Frame


class OllamaRelay:
    """Passes the lines of one answer on."""

    def __init__(self, decoder: OllamaDecoder, reply: Reply) -> None:
        self.done = False
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.calls = 0
        self._decoder = decoder
        self._reply = reply

    def feed(self, frame: Frame) -> bytes:
        """The line as the client should see it."""
        line = None if self.done else read_line(frame)
        if line is None:
            return b""
        self._hear(self._decoder.read(line))
        self.done = self._decoder.done
        return encode_line(mend(line, self._reply)) + b"\n"

    def error(self, error: ToolgateError) -> bytes:
        """The error as the last line."""
        return encode_stream_error(error)

    def end(self) -> bytes:
        """Nothing is left to say."""
        self._decoder.end()
        return b""

    def _hear(self, events: list[StepEvent]) -> None:
        for event in events:
            match event:
                case PartEnd(ToolCall()):
                    self.calls += 1
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
