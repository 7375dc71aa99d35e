"""Relay Ollama's streams and whole answers to Ollama clients, repairing only what breaks clients.

Repaired are missing models, dates and messages, content that is not text or cut inside a character, arguments that are not
objects, ids that two calls share, empty lists of calls, and a last line whose reason is missing or another API's.
Reasoning that the client does not want is left out. Everything else stays unchanged. Each line is decoded, too, so that a
relayed answer fails exactly where a translated one would.
"""

from typing import Any

from toolgate.conversation import call_ids
from toolgate.conversation.arguments import arguments_text
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, PartDelta, PartEnd, PartStart, StepEnd, Usage
from toolgate.conversation.message import Part, Reasoning, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.dialects.dialect import AnswerMetadata, FragmentsForTokenCount
from toolgate.dialects.ollama.server import encode_stream_error, shows_thinking
from toolgate.dialects.ollama.shared_codec import encode_line, read_reason, write_arguments, write_date, write_reason
from toolgate.dialects.ollama.stream_decoder import OllamaLine, OllamaStreamDecoder, read_line
from toolgate.wire.received_stream_frames import ReceivedStreamFrame


class OllamaStreamRelay:
    """Relays the lines of one answer."""

    def __init__(self, decoder: OllamaStreamDecoder, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self.done = False
        self.names = CallNameCorrector(tool_names(request.tools))
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.calls = 0
        self._decoder = decoder
        self._relayed = FragmentsForTokenCount()
        self._thinking = False
        self._repair = OllamaLineRepair(request, metadata)
        self._held: dict[str, Any] | None = None  # the last line, which lacks usage

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete and the upstream did not report both counts."""
        return self._held is not None

    def received(self) -> list[Part]:
        """Return the texts of all lines so far."""
        return self._relayed.parts()

    def feed(self, frame: ReceivedStreamFrame) -> bytes:
        """Return the line as the client should receive it."""
        line = None if self.done else read_line(frame)
        if line is None:
            return b""
        for entry in line.calls:
            # In place, so that the decoder reads the corrected name as well.
            if type(function := entry.get("function")) is dict:
                function["name"] = self.names.correct(arguments_text(function.get("name")))
        # The events of the decoder tell how the answer ends, and have the text whose tokens may have to be counted.
        relayed = self._relayed
        for event in self._decoder.read(line):
            match event:
                case PartDelta(text):
                    (relayed.reasoning if self._thinking else relayed.text).append(text)
                case PartStart(part):
                    self._thinking = isinstance(part, Reasoning)
                case PartEnd(ToolCall(name=name, arguments=arguments)):
                    self.calls += 1
                    relayed.calls[self.calls] = [name, arguments]
                case StepEnd(reason, usage):
                    self.reason, self.usage = reason, usage
        self.done = self._decoder.done
        fields = self._repair.repair(line)
        # `end_with` adds an estimate, as the counts belong into the last line.
        if self.done and (self.usage is None or self.usage.missing):
            self._held = fields
            return b""
        return encode_line(fields) + b"\n"

    def end_with(self, usage: Usage) -> bytes:
        """Return the last line, with this usage."""
        fields, self.usage, self._held = self._held or {}, usage, None
        return encode_line({**fields, "prompt_eval_count": usage.input, "eval_count": usage.output}) + b"\n"

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as the last line."""
        return encode_stream_error(error)

    def end(self) -> bytes:
        """Return nothing, or raise InvalidUpstreamAnswer if the stream was cut short."""
        self._decoder.end()
        return b""


class OllamaLineRepair:
    """Repairs the lines of one answer; a whole answer is its only line."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self._metadata = metadata
        self._shows_thinking = shows_thinking(request)
        self._ids: set[str] = set()
        self._content_surrogates, self._thinking_surrogates = SurrogateJoiner(), SurrogateJoiner()
        self._has_messages = False

    def repair(self, line: OllamaLine) -> dict[str, Any]:
        """Return the line as a client should receive it."""
        fields = dict(line.fields)
        fields["model"] = fields.get("model") or self._metadata.model
        fields["created_at"] = fields.get("created_at") or write_date(self._metadata.created)
        fields["done"] = fields.get("done") is True
        if fields["done"]:
            fields["done_reason"] = write_reason(read_reason(fields.get("done_reason")))
        message = fields.get("message")
        # A line of `/api/generate` has its content beside `model`. One of `/api/chat` may lack the message at the end.
        self._has_messages = self._has_messages or type(message) is dict
        if self._has_messages:
            fields["message"] = {"role": "assistant", **(message if type(message) is dict else {})}
            self._repair_message(fields["message"], "content", line, fields["done"])
        else:
            self._repair_message(fields, "response", line, fields["done"])
        return fields

    def _repair_message(self, message: dict[str, Any], content: str, line: OllamaLine, last: bool) -> None:
        # Clients join the texts of all lines, so each line has one, if an empty one.
        text = message.get(content)
        message[content] = self._content_surrogates.feed(text) if type(text) is str else ""
        if not self._shows_thinking:
            message.pop("thinking", None)
        elif type(thinking := message.get("thinking")) is str:
            message["thinking"] = self._thinking_surrogates.feed(thinking)
        if last:
            message[content] += self._content_surrogates.end()
            if rest := self._thinking_surrogates.end():
                message["thinking"] = (message.get("thinking") or "") + rest
        calls = line.calls
        if not calls:
            message.pop("tool_calls", None)
            return
        message["tool_calls"] = []
        for entry, arguments in zip(calls, line.arguments, strict=True):
            repaired = {**entry, "function": {**entry["function"], "arguments": write_arguments(arguments)}}
            if given := arguments_text(entry.get("id")):
                repaired["id"] = given if given not in self._ids else call_ids.new_call_id()
                self._ids.add(repaired["id"])
            message["tool_calls"].append(repaired)
