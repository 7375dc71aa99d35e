"""Chat to Chat: chunks pass as they came, and only what breaks clients is mended.

Mended are the role of the first delta, `index`, `id` and `type` of calls, names and ids said again, arguments and content
that are not text, vendors' finish reasons and repeated ones, and ids and dates that change from chunk to chunk.
Unknown fields, further choices, log probabilities and the like stay as they are.
"""

from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.arguments import as_text
from toolgate.conversation.errors import Garbled, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import PassedText, Reply
from toolgate.dialects.openai_chat.requests import wants_usage
from toolgate.dialects.openai_chat.server import encode_stream_error
from toolgate.dialects.openai_chat.stream import Correlator, Halves, content_parts
from toolgate.dialects.openai_chat.words import read_reason, read_usage, write_reason, write_usage
from toolgate.dialects.refusals import read_error_object
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import decode_event, encode

_DONE = b"data: [DONE]\n\n"
_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call"})


class _Choice:
    """What was said so far in one choice."""

    __slots__ = ("calls", "correlator", "halves", "ids", "names", "opened", "passed", "reason")

    def __init__(self) -> None:
        self.passed = PassedText()
        self.correlator = Correlator()
        self.ids: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.halves = Halves()
        self.opened = False
        self.calls = False
        self.reason: FinishReason | None = None

    def mend(self, choice: dict[str, Any]) -> None:
        """Put right, in place, what this chunk says of the choice."""
        delta = choice.get("delta")
        if type(delta) is not dict:
            delta = choice["delta"] = {}
        if not self.opened:
            self.opened = True
            delta["role"] = "assistant"
        elif "role" in delta:
            del delta["role"]
        if content := delta.get("content"):
            self._mend_content(delta, content)
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self.passed.thoughts.append(as_text(thought))
        entries = delta.get("tool_calls")
        if entries:
            self.calls = True
            for entry in entries:
                self._mend_call(entry)
        elif "tool_calls" in delta:
            del delta["tool_calls"]
        if delta.get("function_call"):
            self.calls = True
        self._mend_reason(choice)

    def _mend_content(self, delta: dict[str, Any], content: Any) -> None:
        if type(content) is str:
            delta["content"] = self.halves.join(content)
            self.passed.text.append(content)
        elif type(content) is list:
            said = [*content_parts(content)]
            delta["content"] = "".join([text for kind, text in said if kind == "text"])
            self.passed.text.append(delta["content"])
            if thought := "".join([text for kind, text in said if kind == "thinking"]):
                delta["reasoning_content"] = thought

    def _mend_call(self, entry: Any) -> None:
        if type(entry) is not dict:
            raise Garbled("The upstream sent a tool call that is not an object.")
        number = entry["index"] = self.correlator.place(entry)
        field = "custom" if type(entry.get("custom")) is dict else "function"
        function: dict[str, Any] = entry[field] if type(entry.get(field)) is dict else {}
        entry[field] = function
        text = "input" if field == "custom" else "arguments"
        function[text] = as_text(function.get(text))
        name = function.pop("name", None)
        self.passed.calls.setdefault(number, [as_text(name)]).append(function[text])
        if number in self.ids:
            entry.pop("id", None)
            entry.pop("type", None)
            if name and name != self.names[number]:
                function["name"] = name
                self.names[number] += name
            return
        given = as_text(entry.get("id"))
        entry["id"] = self.ids[number] = given if given and given not in self.ids.values() else ids.new_call_id()
        entry["type"] = field
        function["name"] = self.names[number] = name or ""

    def _mend_reason(self, choice: dict[str, Any]) -> None:
        word = choice.get("finish_reason")
        if word == "error":
            raise read_error_object(choice.get("error") or "The upstream failed while answering.")
        if not word or self.reason is not None:
            choice["finish_reason"] = None
            return
        self.reason = read_reason(str(word))
        if self.reason == "stop" and self.calls:
            self.reason = "tool_calls"
        elif self.reason == "tool_calls" and not self.calls:
            self.reason = "stop"
        if word not in _REASONS or (word == "stop") != (self.reason == "stop"):
            choice["finish_reason"] = write_reason(self.reason)


class ChatRelay:
    """Passes a chat stream on."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self.done = False
        self.usage: Usage | None = None
        self._reply = reply
        self._wants_usage = wants_usage(request)
        self._choices: dict[int, _Choice] = {}
        self._identity: dict[str, Any] = {}

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete without usage."""
        return self.done and self.usage is None

    def received(self) -> list[Part]:
        """The texts of all choices so far."""
        return [part for choice in self._choices.values() for part in choice.passed.parts()]

    @property
    def reason(self) -> FinishReason | None:
        """Why the first choice ended, once it has."""
        return self._choices[0].reason if 0 in self._choices else None

    @property
    def calls(self) -> int:
        """How many calls the choices hold."""
        return sum([len(choice.ids) for choice in self._choices.values()])

    def feed(self, frame: Frame) -> bytes:
        """The chunk as the client should see it."""
        data = frame.data.strip()
        if not data:
            return b""
        if data == b"[DONE]":
            return self._finish()
        chunk = decode_event(data)
        if type(chunk) is not dict:
            raise Garbled("The upstream sent a chunk that is not an object.")
        if frame.event == "error" or chunk.get("error"):
            raise read_error_object(chunk.get("error") or chunk)
        return self._mended(chunk)

    def end(self) -> bytes:
        """What is left to say."""
        return b"" if self.done else self._finish()

    def error(self, error: ToolgateError) -> bytes:
        """The error as an event, then the terminator."""
        return encode_stream_error(error)

    def _finish(self) -> bytes:
        if not self._choices or any(choice.reason is None for choice in self._choices.values()):
            raise Garbled("The upstream's stream ended before the answer was complete.")
        self.done = True
        return b"" if self.usage is None else _DONE

    def end_with(self, usage: Usage) -> bytes:
        """The usage in a chunk of its own, if the client wants it, and the terminator."""
        self.usage = usage
        if not self._wants_usage:
            return _DONE
        chunk = {**self._identity, "object": "chat.completion.chunk", "choices": [], "usage": write_usage(usage)}
        return b"data: " + encode(chunk) + b"\n\n" + _DONE

    def _mended(self, chunk: dict[str, Any]) -> bytes:
        self._present(chunk)
        choices = chunk.get("choices")
        if type(choices) is not list:
            choices = chunk["choices"] = []
        for choice in choices:
            index = choice["index"] = choice.get("index") or 0
            (self._choices.get(index) or self._choices.setdefault(index, _Choice())).mend(choice)
        usage = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
        if usage and (read := read_usage(usage)):
            self.usage = read
            chunk["usage"] = {**write_usage(read), **usage}
            if not self._wants_usage:
                del chunk["usage"]
                if not choices:
                    return b""
        return b"data: " + encode(chunk) + b"\n\n"

    def _present(self, chunk: dict[str, Any]) -> None:
        """The first id, date and model that the upstream names stand for all chunks; ours stand in for none."""
        if not self._identity:
            self._identity = _identity(chunk, self._reply)
        chunk |= self._identity
        chunk["object"] = "chat.completion.chunk"


def _identity(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    return {
        "id": body.get("id") or reply.id,
        "created": body.get("created") or reply.created,
        "model": body.get("model") or reply.model,
    }


def mend_response(body: dict[str, Any], response: ModelResponse, reply: Reply) -> dict[str, Any]:
    """A whole answer as it came, with the calls and the reason of its first choice mended."""
    if _is_canonical(body):
        return body
    mended = {**body, **_identity(body, reply), "object": "chat.completion"}
    first, *others = body["choices"]
    message = {"role": "assistant", "content": None, "refusal": None, **(first.get("message") or {})}
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    if message.get("tool_calls"):
        message["tool_calls"] = [
            _mend_call(entry, call) for entry, call in zip(message["tool_calls"], calls, strict=False)
        ]
    else:
        message.pop("tool_calls", None)
    reason = write_reason(response.reason)
    if message.get("function_call") and reason == "tool_calls":
        reason = "function_call"
    choice = {"logprobs": None, **first, "index": 0, "message": message, "finish_reason": reason}
    usage = {**write_usage(response.usage or Usage()), **(body.get("usage") or {})}
    return {**mended, "choices": [choice, *others], "usage": usage}


def _is_canonical(body: dict[str, Any]) -> bool:
    """Whether this is plain text just as OpenAI itself would send it, so that there is nothing to mend."""
    if not (body.get("id") and body.get("created") and body.get("model") and body.get("usage")):
        return False
    first = body["choices"][0]
    message = first.get("message")
    return (
        body.get("object") == "chat.completion"
        and first.get("index") == 0
        and first.get("finish_reason") in ("stop", "length")
        and type(message) is dict
        and message.get("role") == "assistant"
        and type(message.get("content")) is str
        and not message.get("tool_calls")
        and not message.get("function_call")
    )


def _mend_call(entry: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    field, text = ("custom", "input") if call.freeform else ("function", "arguments")
    inner = {**(entry.get(field) or {}), "name": call.name, text: call.arguments}
    mended = {**entry, "id": call.id, "type": field, field: inner}
    mended.pop("index", None)
    return mended
