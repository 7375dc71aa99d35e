"""Ollama to Ollama: lines pass as they came, and only what breaks clients is mended.

Mended are missing models, dates and messages, content that is not text or cut amid a character, arguments that are not
objects, ids that two calls share, empty lists of calls, and a last line whose reason is missing or a word of another API.
Thoughts that the client does not want are left out. Everything else stays as it is. A decoder listens, so that a relayed
answer fails exactly where a translated one would.
"""

from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.arguments import as_text
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import Delta, FinishReason, PartEnd, PartStart, StepEnd, StepEvent, Usage
from toolgate.conversation.message import Part, Reasoning, ToolCall
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.stock import names_of
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.dialects.dialect import PassedText, Reply
from toolgate.dialects.ollama.server import encode_stream_error, shows_thinking
from toolgate.dialects.ollama.stream import Line, OllamaDecoder, read_line
from toolgate.dialects.ollama.words import encode_line, read_reason, write_arguments, write_date, write_reason
from toolgate.wire.frames import Frame


class OllamaRelay:
    """Passes the lines of one answer on."""

    def __init__(self, decoder: OllamaDecoder, request: ModelRequest, reply: Reply) -> None:
        self.done = False
        self.names = CallNames(names_of(request.tools))
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.calls = 0
        self._decoder = decoder
        self._passed = PassedText()
        self._thinking = False
        self._mender = Mender(request, reply)
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
            if type(function := entry.get("function")) is dict:
                function["name"] = self.names.correct(as_text(function.get("name")))
        self._hear(self._decoder.read(line))
        self.done = self._decoder.done
        told = self._mender.mend(line)
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


class Mender:
    """Puts the lines of one answer right, of which a whole answer is the only one."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self._reply = reply
        self._thinks = shows_thinking(request)
        self._ids: set[str] = set()
        self._content, self._thoughts = SurrogateJoiner(), SurrogateJoiner()
        self._has_messages = False

    def mend(self, line: Line) -> dict[str, Any]:
        """The line as a client should see it."""
        fields = dict(line.fields)
        fields["model"] = fields.get("model") or self._reply.model
        fields["created_at"] = fields.get("created_at") or write_date(self._reply.created)
        fields["done"] = fields.get("done") is True
        if fields["done"]:
            fields["done_reason"] = write_reason(read_reason(fields.get("done_reason")))
        message = fields.get("message")
        self._has_messages = self._has_messages or type(message) is dict
        if self._has_messages:
            fields["message"] = {"role": "assistant", **(message if type(message) is dict else {})}
            self._mend_words(fields["message"], "content", line, fields["done"])
        else:
            self._mend_words(fields, "response", line, fields["done"])
        return fields

    def _mend_words(self, words: dict[str, Any], content: str, line: Line, last: bool) -> None:
        text = words.get(content)
        words[content] = self._content.feed(text) if type(text) is str else ""
        if not self._thinks:
            words.pop("thinking", None)
        elif type(thought := words.get("thinking")) is str:
            words["thinking"] = self._thoughts.feed(thought)
        if last:
            words[content] += self._content.end()
            if rest := self._thoughts.end():
                words["thinking"] = (words.get("thinking") or "") + rest
        if line.calls:
            entries = zip(line.calls, line.arguments, strict=True)
            words["tool_calls"] = [self._mend_call(entry, text) for entry, text in entries]
        else:
            words.pop("tool_calls", None)

    def _mend_call(self, entry: dict[str, Any], arguments: str) -> dict[str, Any]:
        mended = {**entry, "function": {**entry["function"], "arguments": write_arguments(arguments)}}
        if given := as_text(entry.get("id")):
            mended["id"] = given if given not in self._ids else ids.new_call_id()
            self._ids.add(mended["id"])
        return mended
