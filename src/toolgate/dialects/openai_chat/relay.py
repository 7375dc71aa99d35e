"""Chat to Chat: chunks pass as they came, and only what breaks clients is mended.

Mended are the role of the first delta, `index`, `id` and `type` of calls, names and ids said again, arguments and content
that are not text, vendors' finish reasons and repeated ones, and ids and dates that change from chunk to chunk.
Unknown fields, further choices, log probabilities and the like stay as they are.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.arguments import ArgumentStream, as_text
from toolgate.conversation.assemble import MAX_PARTS, check_name
from toolgate.conversation.errors import Garbled, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part, ToolCall
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.stock import names_of
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.dialects.dialect import PassedText, Reply
from toolgate.dialects.openai_chat.requests import wants_usage
from toolgate.dialects.openai_chat.server import encode_stream_error
from toolgate.dialects.openai_chat.stream import Correlator, content_parts
from toolgate.dialects.openai_chat.words import read_reason, read_usage, write_reason, write_usage
from toolgate.dialects.refusals import read_error_object
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import decode_event, encode

_MAX_CHOICES = 128  # as many as a request may ask for
_DONE = b"data: [DONE]\n\n"
_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call"})


class _Call:
    """A call of which deltas come in; it is not passed on before its name is known."""

    __slots__ = ("_names", "arguments", "before", "field", "id", "name", "number", "unsent", "written")

    def __init__(self, number: int, field: str, names: CallNames) -> None:
        self._names = names
        self.number = number
        self.field = field
        self.id = ""
        self.name = ""
        self.written = ""  # the name as the upstream wrote it
        self.arguments = ArgumentStream()
        self.unsent: dict[str, Any] = {}  # what was said of it before its name, but for
        self.before: list[str] = []  # its arguments

    def mend(self, entry: dict[str, Any], taken: Collection[str]) -> dict[str, Any] | None:
        """The entry as clients can read it, None while there is nothing to pass on; `taken` ids belong to other calls."""
        function: dict[str, Any] = entry[self.field] if type(entry.get(self.field)) is dict else {}
        name, text = function.pop("name", None), "input" if self.field == "custom" else "arguments"
        piece = as_text(function.get(text))
        function[text] = piece if self.field == "custom" else self.arguments.feed(piece)
        entry[self.field] = function
        if self.name:
            if name and name not in (self.name, self.written):
                function["name"] = name
                self.name += name
                check_name(self.name)
            entry.pop("id", None)
            entry.pop("type", None)
            return entry
        earlier = self.unsent.setdefault(self.field, {})
        self.before.append(function.pop(text))
        earlier.update(function)
        del entry[self.field]
        self.unsent.update(entry)
        if not name:
            return None
        earlier[text] = "".join(self.before)
        given = as_text(self.unsent.get("id"))
        self.id = given if given and given not in taken else ids.new_call_id()
        self.written = as_text(name)
        check_name(self.written)
        self.name = earlier["name"] = self._names.correct(self.written)
        return self.unsent | {"index": self.number, "id": self.id, "type": self.field}

    def end(self, cut: bool) -> str:
        """What is left of the arguments; with `cut`, half a call stays half a call."""
        if not self.name:
            raise Garbled("The upstream sent a tool call without a name.")
        return "" if self.field == "custom" else self.arguments.end(cut)


class _Choice:
    """What was said so far in one choice."""

    __slots__ = (
        "_ids",
        "_names",
        "_numbered",
        "_patient",
        "calls",
        "correlators",
        "has_calls",
        "moved",
        "opened",
        "pairs",
        "passed",
        "reason",
        "rest",
        "unended",
        "waits",
    )

    def __init__(self, patient: bool, names: CallNames) -> None:
        """A `patient` choice that ends with calls and has none waits for those that may stand in another."""
        self._patient = patient
        self._names = names
        self.waits = False
        self.moved: list[dict[str, Any]] = []  # entries that stood in another choice, to be sent with the next chunk
        self.passed = PassedText()
        self.correlators: defaultdict[int, Correlator] = defaultdict(Correlator)  # by the choice that holds the call
        self._numbered: dict[tuple[int, int], _Call] = {}
        self.calls: list[_Call] = []
        self.pairs: defaultdict[str, SurrogateJoiner] = defaultdict(SurrogateJoiner)  # by the field of the delta
        self._ids: set[str] = set()
        self.opened = False
        self.has_calls = False
        self.unended = False  # a call was continued since the choice ended
        self.reason: FinishReason | None = None
        self.rest: list[dict[str, Any]] = []  # entries to be sent before the chunk that ends the choice

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
            self._join_pairs(delta, "reasoning_content")
            self._join_pairs(delta, "reasoning")
        if delta.get("refusal"):
            self._join_pairs(delta, "refusal")
        entries = delta.pop("tool_calls", None)
        mended = self.mend_calls(entries, 0) if entries else []
        if self.moved:
            mended, self.moved = mended + self.moved, []
        if mended:
            delta["tool_calls"] = mended
        if delta.get("function_call"):
            self.has_calls = True
        self._mend_reason(choice)

    def _mend_content(self, delta: dict[str, Any], content: Any) -> None:
        if type(content) is str:
            self._join_pairs(delta, "content")
            self.passed.text.append(content)
        elif type(content) is list:
            said = [*content_parts(content)]
            delta["content"] = "".join([text for kind, text in said if kind == "text"])
            self.passed.text.append(delta["content"])
            if thought := "".join([text for kind, text in said if kind == "thinking"]):
                delta["reasoning_content"] = thought

    def _join_pairs(self, delta: dict[str, Any], field: str) -> None:
        """Join halves of characters that came in two deltas; plain text costs nothing."""
        text = delta.get(field)
        if type(text) is str and text and (self.pairs or not text.isascii()):
            delta[field] = self.pairs[field].feed(text)

    def mend_calls(self, entries: Any, source: int) -> list[dict[str, Any]]:
        """The entries of `tool_calls` as clients can read them; `source` is the upstream's choice that they stand in."""
        self.has_calls = self.unended = True
        mended = []
        for entry in entries:
            if type(entry) is not dict:
                raise Garbled("The upstream sent a tool call that is not an object.")
            place = source, self.correlators[source].place(entry)
            call = self._numbered.get(place)
            if call is None:
                if len(self.calls) >= MAX_PARTS:
                    raise Garbled(f"The upstream's answer has more than {MAX_PARTS} calls.")
                field = "custom" if type(entry.get("custom")) is dict else "function"
                call = self._numbered[place] = _Call(len(self.calls), field, self._names)
                self.calls.append(call)
            entry["index"] = call.number
            if passed := call.mend(entry, self._ids):
                self._ids.add(call.id)
                mended.append(passed)
                function = passed[call.field]
                text = function.get("arguments") or function.get("input") or ""
                self.passed.calls.setdefault(call.number, [call.name]).append(text)
        return mended

    def _mend_reason(self, choice: dict[str, Any]) -> None:
        word = choice.get("finish_reason")
        if word == "error":
            raise read_error_object(choice.get("error") or "The upstream failed while answering.")
        if not word or self.reason is not None:
            choice["finish_reason"] = None
            return
        reason = read_reason(str(word))
        if self._patient and reason == "tool_calls" and not self.has_calls and not self.waits:
            self.waits, choice["finish_reason"] = True, None
            return
        self.reason, self.waits, self.unended = reason, False, False
        for field, pairs in self.pairs.items():
            if rest := pairs.end():
                choice["delta"][field] = (choice["delta"].get(field) or "") + rest
        cut = self.reason in ("length", "content_filter")
        here = {entry["index"]: entry for entry in choice["delta"].get("tool_calls") or ()}
        for call in self.calls:
            if not (rest := call.end(cut)):
                continue
            if call.number in here:
                here[call.number]["function"]["arguments"] += rest
            else:
                self.rest.append({"index": call.number, "function": {"arguments": rest}})
        if self.reason == "stop" and self.has_calls:
            self.reason = "tool_calls"
        elif self.reason == "tool_calls" and not self.has_calls:
            self.reason = "stop"
        if word not in _REASONS or (word == "stop") != (self.reason == "stop"):
            choice["finish_reason"] = write_reason(self.reason)


class ChatRelay:
    """Passes a chat stream on."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self.done = False
        self.usage: Usage | None = None
        self.names = CallNames(names_of(request.tools))
        self._reply = reply
        self._wants_usage = wants_usage(request)
        self._joined = request.settings.choices == 1
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
        return sum([len(choice.calls) for choice in self._choices.values()])

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
        first, last = self._choices.get(0), b""
        if first is not None and first.waits:
            last = self._mended(
                {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}]}
            )
        if not self._choices or any(choice.reason is None for choice in self._choices.values()):
            raise Garbled("The upstream's stream ended before the answer was complete.")
        self.done = True
        return last if self.usage is None else last + _DONE

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
        if self._joined and len(self._choices) + len(choices) > 1:
            choices = chunk["choices"] = self._join(choices)
        before = b""
        for choice in choices:
            index = choice["index"] = choice.get("index") or 0
            known = self._choices.get(index)
            if known is None:
                if len(self._choices) >= _MAX_CHOICES:
                    raise Garbled(f"The upstream's answer has more than {_MAX_CHOICES} choices.")
                known = self._choices[index] = _Choice(self._joined and not index, self.names)
            known.mend(choice)
            if known.rest:
                before += self._rest_of(known, index)
        usage = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
        if usage and (read := read_usage(usage)):
            self.usage = read
            chunk["usage"] = {**write_usage(read), **usage}
            if not self._wants_usage:
                del chunk["usage"]
                if not choices:
                    return before
        return before + b"data: " + encode(chunk) + b"\n\n"

    def _join(self, choices: list[Any]) -> list[Any]:
        """Move calls that stand in a further choice, though one answer was asked for, into the first.

        Some upstreams put the text into one choice and each call into another; clients read the first alone.
        """
        first = self._choices.get(0) or self._choices.setdefault(0, _Choice(patient=True, names=self.names))
        kept: list[Any] = []
        ends = False
        for choice in choices:
            source, delta = choice.get("index") or 0, choice.get("delta")
            entries = delta.pop("tool_calls", None) if source and type(delta) is dict else None
            if entries:
                first.moved += first.mend_calls(entries, source)
            if source in first.correlators and source and choice.get("finish_reason"):
                ends = True
            if not source or source in self._choices or (type(delta) is dict and delta.get("content")):
                kept.append(choice)
        ends = ends and (first.waits or (first.reason is not None and first.unended))
        if (first.moved or ends) and not any(not choice.get("index") for choice in kept):
            kept.insert(0, {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None})
        if ends:
            first.reason = None  # a reason that was given before these calls came does not hold any more
            next(choice for choice in kept if not choice.get("index"))["finish_reason"] = "tool_calls"
        return kept

    def _rest_of(self, choice: _Choice, index: int) -> bytes:
        """A chunk with what is left of the calls, sent before the one that ends the choice."""
        delta, choice.rest = {"tool_calls": choice.rest}, []
        last = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return b"data: " + encode({**self._identity, "object": "chat.completion.chunk", "choices": [last]}) + b"\n\n"

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


def mend_response(body: dict[str, Any], response: ModelResponse, reply: Reply, joined: bool) -> dict[str, Any]:
    """A whole answer as it came, with the calls and the reason of its first choice mended.

    Where one answer was asked for, the calls that stand in further choices are `joined` with the first's.
    """
    if _is_canonical(body):
        return body
    mended = {**body, **_identity(body, reply), "object": "chat.completion"}
    first, *others = body["choices"]
    message = {"content": None, "refusal": None, **(first.get("message") or {}), "role": "assistant"}
    if type(message["content"]) is list:
        _mend_parts(message)
    if joined and others:
        entries, others = _taken_from(others)
        message["tool_calls"] = [*(message.get("tool_calls") or ()), *entries]
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


def _mend_parts(message: dict[str, Any]) -> None:
    """Put the texts of content parts, which Chat clients do not read in answers, where they look for them."""
    said = [*content_parts(message["content"])]
    message["content"] = "".join([text for kind, text in said if kind == "text"]) or None
    if thought := "".join([text for kind, text in said if kind == "thinking"]):
        message.setdefault("reasoning_content", thought)


def _taken_from(choices: list[Any]) -> tuple[list[Any], list[Any]]:
    """The calls of these choices, and what is left of those that hold anything else."""
    entries: list[Any] = []
    left: list[Any] = []
    for choice in choices:
        message = choice.get("message") if type(choice) is dict else None
        if type(message) is not dict or not message.get("tool_calls"):
            left.append(choice)
            continue
        entries += message["tool_calls"]
        if message.get("content"):
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            left.append({**choice, "message": rest, "finish_reason": "stop"})
    return entries, left


def _is_canonical(body: dict[str, Any]) -> bool:
    """Whether this is plain text just as OpenAI itself would send it, so that there is nothing to mend."""
    if not (body.get("id") and body.get("created") and body.get("model") and body.get("usage")):
        return False
    first = body["choices"][0]
    message = first.get("message")
    return (
        body.get("object") == "chat.completion"
        and len(body["choices"]) == 1
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
