"""Relay Chat streams to Chat clients, repairing only what breaks clients; `repair_response.py` does so for whole answers.

Repaired are the role of the first delta, `index`, `id` and `type` of calls, repeated names and ids, arguments and content
that are not text, vendors' finish reasons and repeated ones, and ids and dates that change from chunk to chunk.
Unknown fields, other choices, log probabilities and the like stay unchanged.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from toolgate.conversation import call_ids
from toolgate.conversation.arguments import ArgumentTextNormalizer, arguments_text
from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError
from toolgate.conversation.event_assembler import MAX_PARTS, check_name_length
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import Part
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.dialects.dialect import AnswerMetadata, FragmentsForTokenCount
from toolgate.dialects.openai_chat.plain_text_fast_path import decode_text_chunk
from toolgate.dialects.openai_chat.repair_response import answer_identity
from toolgate.dialects.openai_chat.requests import wants_usage
from toolgate.dialects.openai_chat.server import encode_stream_error, end_before_error
from toolgate.dialects.openai_chat.shared_codec import (
    read_reason,
    read_usage,
    usage_of_chunk,
    write_reason,
    write_usage,
)
from toolgate.dialects.openai_chat.stream_decoder import ToolCallDeltaCorrelator, split_content
from toolgate.dialects.upstream_errors import decode_error_object
from toolgate.wire.jsontext import decode_event, encode
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

_MAX_CHOICES = 128  # the most that a request may ask for
_DONE = b"data: [DONE]\n\n"
_LF = ord("\n")
# The finish reasons of OpenAI, which pass unchanged. Clients with strict types fail on a vendor's own, such as "eos".
_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call"})


class _Call:
    """A call that is being received; it is not relayed before its name is known."""

    __slots__ = ("_names", "arguments", "field", "given_name", "id", "name", "number", "unsent", "unsent_arguments")

    def __init__(self, number: int, field: str, names: CallNameCorrector) -> None:
        self._names = names
        self.number = number
        self.field = field
        self.id = ""
        self.name = ""
        self.given_name = ""  # the name that the upstream sent
        self.arguments = ArgumentTextNormalizer()
        self.unsent: dict[str, Any] = {}  # fields that came before the name, without
        self.unsent_arguments: list[str] = []

    def repair(self, entry: dict[str, Any], taken: Collection[str]) -> dict[str, Any] | None:
        """Return the entry as clients can read it, None while the name is unknown; `taken` ids belong to other calls."""
        function: dict[str, Any] = entry[self.field] if type(entry.get(self.field)) is dict else {}
        name, text = function.pop("name", None), "input" if self.field == "custom" else "arguments"
        fragment = function.get(text)
        if type(fragment) is not str:
            fragment = arguments_text(fragment)
        function[text] = fragment if self.field == "custom" else self.arguments.feed(fragment)
        entry[self.field] = function
        if self.name:
            # A name in a later delta is its next fragment ("get_", "weather"), unless it is the whole name once more.
            if name and name not in (self.name, self.given_name):
                function["name"] = name
                self.name += name
                check_name_length(self.name)
            # Only the first delta of a call has these: a client may take an id for the start of another call.
            entry.pop("id", None)
            entry.pop("type", None)
            return entry
        # Clients start a call with the first delta, and many read the name from that one only. So all fields wait for it.
        earlier = self.unsent.setdefault(self.field, {})
        self.unsent_arguments.append(function.pop(text))
        earlier.update(function)
        del entry[self.field]
        self.unsent.update(entry)
        if not name:
            return None
        earlier[text] = "".join(self.unsent_arguments)
        # Clients match results to calls by id, so a call without one, or with that of another call, gets a new one.
        given = arguments_text(self.unsent.get("id"))
        self.id = given if given and given not in taken else call_ids.new_call_id()
        self.given_name = arguments_text(name)
        check_name_length(self.given_name)
        self.name = earlier["name"] = self._names.correct(self.given_name)
        return self.unsent | {"index": self.number, "id": self.id, "type": self.field}

    def end(self, cut: bool) -> str:
        """Return the rest of the arguments; with `cut`, an incomplete call stays incomplete."""
        if not self.name:
            raise InvalidUpstreamAnswer("The upstream sent a tool call without a name.")
        return "" if self.field == "custom" else self.arguments.end(cut)


class _Choice:
    """What was received so far of one choice."""

    __slots__ = (
        "_ids",
        "_names",
        "_numbered",
        "_waits_for_calls",
        "calls",
        "correlators",
        "has_calls",
        "moved",
        "opened",
        "reason",
        "relayed",
        "rest",
        "surrogates",
        "unended",
        "waits",
    )

    def __init__(self, waits_for_calls: bool, names: CallNameCorrector) -> None:
        """With `waits_for_calls`, a choice that ends with calls and has none waits for calls in other choices."""
        self._waits_for_calls = waits_for_calls
        self._names = names
        self.waits = False
        self.moved: list[dict[str, Any]] = []  # calls of another choice, to be sent with the next chunk
        self.relayed = FragmentsForTokenCount()
        # by the choice that holds the call
        self.correlators: defaultdict[int, ToolCallDeltaCorrelator] = defaultdict(ToolCallDeltaCorrelator)
        self._numbered: dict[tuple[int, int], _Call] = {}
        self.calls: list[_Call] = []
        self.surrogates: defaultdict[str, SurrogateJoiner] = defaultdict(SurrogateJoiner)  # by the field of the delta
        self._ids: set[str] = set()
        self.opened = False
        self.has_calls = False
        self.unended = False  # a call was continued since the choice ended
        self.reason: FinishReason | None = None
        self.rest: list[dict[str, Any]] = []  # the last arguments, to be sent before the chunk that ends the choice

    def repair(self, choice: dict[str, Any]) -> None:
        """Repair this chunk of the choice in place."""
        delta = choice.get("delta")
        if type(delta) is not dict:
            delta = choice["delta"] = {}
        # As from OpenAI, the first delta has the role and no other.
        if not self.opened:
            self.opened = True
            delta["role"] = "assistant"
        elif "role" in delta:
            del delta["role"]
        content = delta.get("content")
        if len(delta) == 1 and type(content) is str and content.isascii() and not self.surrogates and not self.moved:
            self.relayed.text.append(content)  # most chunks
        else:
            self._repair_delta(delta, content)
        if choice.get("finish_reason") is None:
            choice["finish_reason"] = None
        else:
            self._repair_reason(choice)

    def _repair_delta(self, delta: dict[str, Any], content: Any) -> None:
        entries = delta.pop("tool_calls", None)
        if type(content) is str:
            if content:
                self._join_surrogates(delta, "content")
                self.relayed.text.append(content)
        elif content is not None:
            # Mistral's reasoning models send a list of parts; Chat clients expect a string, and thoughts beside it.
            delta["content"], thinking = split_content(content)
            self.relayed.text.append(delta["content"])
            if thinking:
                delta["reasoning_content"] = thinking
        if delta:
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                self.relayed.reasoning.append(arguments_text(thought))
                self._join_surrogates(delta, "reasoning_content")
                self._join_surrogates(delta, "reasoning")
            if delta.get("refusal"):
                self._join_surrogates(delta, "refusal")
            if type(audio := delta.get("audio")) is dict:
                self.relayed.text.append(arguments_text(audio.get("transcript")))
            if delta.get("function_call"):
                self.has_calls = True
        repaired = self.repair_calls(entries, 0) if entries else []
        if self.moved:
            repaired, self.moved = repaired + self.moved, []
        if repaired:
            delta["tool_calls"] = repaired

    def _join_surrogates(self, delta: dict[str, Any], field: str) -> None:
        """Join surrogate pairs that came in two deltas; ASCII text costs nothing."""
        text = delta.get(field)
        if type(text) is str and text and (self.surrogates or not text.isascii()):
            delta[field] = self.surrogates[field].feed(text)

    def repair_calls(self, entries: Any, source: int) -> list[dict[str, Any]]:
        """Return the entries of `tool_calls` as clients can read them; `source` is the upstream's choice that has them."""
        self.has_calls = self.unended = True
        repaired = []
        for entry in entries:
            if type(entry) is not dict:
                raise InvalidUpstreamAnswer("The upstream sent a tool call that is not an object.")
            place = source, self.correlators[source].number_of(entry)
            call = self._numbered.get(place)
            if call is None:
                if len(self.calls) >= MAX_PARTS:
                    raise InvalidUpstreamAnswer(f"The upstream's answer has more than {MAX_PARTS} calls.")
                field = "custom" if type(entry.get("custom")) is dict else "function"
                call = self._numbered[place] = _Call(len(self.calls), field, self._names)
                self.calls.append(call)
            entry["index"] = call.number
            if sent := call.repair(entry, self._ids):
                self._ids.add(call.id)
                repaired.append(sent)
                function = sent[call.field]
                text = function.get("arguments") or function.get("input") or ""
                self.relayed.calls.setdefault(call.number, [call.name]).append(text)
        return repaired

    def _repair_reason(self, choice: dict[str, Any]) -> None:
        sent = choice.get("finish_reason")
        if sent == "error":
            raise decode_error_object(choice.get("error") or "The upstream failed while answering.")
        # Some servers send "" in every chunk, or a second reason; a client stops reading at the first that is not null.
        if not sent or self.reason is not None:
            choice["finish_reason"] = None
            return
        reason = read_reason(str(sent))
        # "tool_calls" without a call: the calls may still come in other choices, so the end is not relayed yet.
        if self._waits_for_calls and reason == "tool_calls" and not self.has_calls and not self.waits:
            self.waits, choice["finish_reason"] = True, None
            return
        self.reason, self.waits, self.unended = reason, False, False
        for field, joiner in self.surrogates.items():
            if rest := joiner.end():
                choice["delta"][field] = (choice["delta"].get(field) or "") + rest
        # The last arguments go into the entry that this chunk has of the call, else into a chunk before this one:
        # behind a finish reason no client reads them.
        cut = self.reason in ("length", "content_filter")
        in_chunk = {entry["index"]: entry for entry in choice["delta"].get("tool_calls") or ()}
        for call in self.calls:
            if not (rest := call.end(cut)):
                continue
            if call.number in in_chunk:
                in_chunk[call.number]["function"]["arguments"] += rest
            else:
                self.rest.append({"index": call.number, "function": {"arguments": rest}})
        # Many clients run calls only after "tool_calls", and fail if there are none, so the calls decide.
        if self.reason == "stop" and self.has_calls:
            self.reason = "tool_calls"
        elif self.reason == "tool_calls" and not self.has_calls:
            self.reason = "stop"
        if sent not in _REASONS or (sent == "stop") != (self.reason == "stop"):
            choice["finish_reason"] = write_reason(self.reason)


class ChatStreamRelay:
    """Relays a chat stream."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self.done = False
        self.usage: Usage | None = None
        self.names = CallNameCorrector(tool_names(request.tools))
        self._metadata = metadata
        self._wants_usage = wants_usage(request)
        self._joined = request.settings.choices == 1
        self._choices: dict[int, _Choice] = {}
        self._identity: dict[str, Any] = {}
        self._last: dict[str, Any] | None = None  # a chunk that ends a choice, until the next one
        self._only_text: bool | None = None  # whether all chunks after the first are plain; None before the first

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete and the upstream did not report both counts."""
        return self.done and (self.usage is None or self.usage.missing is not None)

    def received(self) -> list[Part]:
        """Return the texts of all choices so far."""
        return [part for choice in self._choices.values() for part in choice.relayed.parts()]

    @property
    def reason(self) -> FinishReason | None:
        """The finish reason of the first choice, once it has ended."""
        return self._choices[0].reason if 0 in self._choices else None

    @property
    def calls(self) -> int:
        """The number of calls in all choices."""
        return sum([len(choice.calls) for choice in self._choices.values()])

    def feed(self, frame: ReceivedStreamFrame) -> bytes:
        """Return the chunk as the client should receive it."""
        data = frame.data.strip()
        if not data:
            return b""
        if data == b"[DONE]":
            return self._finish()
        # Most chunks are only more text of the first choice, under the ids of the chunks before, and pass as they came.
        if (
            self._only_text
            and frame.event is None
            and (first := self._choices.get(0)) is not None
            and not (first.surrogates or first.moved)
            and self._last is None
            and _LF not in data  # JSON over several lines needs several `data:` fields
            and (plain := decode_text_chunk(data)) is not None
            and plain.id == (identity := self._identity)["id"]
            and plain.created == identity["created"]
            and plain.model == identity["model"]
        ):
            first.relayed.text.append(plain.choices[0].delta.content)
            return b"data: %b\n\n" % data
        # The first chunk has the role, so it is not tried; the first other one that is not plain ends the attempts.
        self._only_text = self._only_text is None
        chunk = decode_event(data)
        if type(chunk) is not dict:
            raise InvalidUpstreamAnswer("The upstream sent a chunk that is not an object.")
        if frame.event == "error" or chunk.get("error"):
            if now := read_usage(usage_of_chunk(chunk)):
                self.usage = now.following(self.usage)
            raise decode_error_object(chunk.get("error") or chunk)
        choices = chunk.get("choices")
        if self._last is None and type(choices) is list and len(choices) == 1 and not choices[0].get("finish_reason"):
            return self._relay(chunk)
        return self._relay_in_order(chunk, choices if type(choices) is list else [])

    def end(self) -> bytes:
        """Return the last chunks; raise InvalidUpstreamAnswer if the stream was cut short."""
        return b"" if self.done else self._finish()

    def _relay_in_order(self, chunk: dict[str, Any], choices: list[Any]) -> bytes:
        """Hold a chunk that ends a choice until the next one: what follows it must not stand behind the finish reason.

        If the choice goes on, its end moves to the chunk that does.
        """
        ends = any(choice.get("finish_reason") for choice in choices)
        last, self._last = self._last, chunk if ends else None
        if last is None:
            return b"" if ends else self._relay(chunk)
        ended = {choice.get("index") or 0: choice for choice in last["choices"] if choice.get("finish_reason")}
        for choice in choices:
            before, delta = ended.get(choice.get("index") or 0), choice.get("delta")
            if before is None or type(delta) is not dict:
                continue
            if any(value for name, value in delta.items() if name != "role"):  # the choice goes on
                choice["finish_reason"], before["finish_reason"] = before["finish_reason"], None
                self._last = chunk
        return self._relay(last) if self._last is chunk else self._relay(last) + self._relay(chunk)

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as an event, then the terminator; what was held comes before it, without its end."""
        last, self._last = self._last, None
        for choice in last["choices"] if last is not None else ():
            choice["finish_reason"] = None
        rest = self._relay(last) if last is not None else b""
        has_calls = any(choice.has_calls for choice in self._choices.values())
        return rest + end_before_error(self._metadata, has_calls) + encode_stream_error(error)

    def _finish(self) -> bytes:
        held, self._last = self._last, None
        last = self._relay(held) if held is not None else b""
        first = self._choices.get(0)
        if first is not None and first.waits:  # no other choice brought the calls that were announced
            end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
            last += self._relay({"choices": [end]})
        if not self._choices or any(choice.reason is None for choice in self._choices.values()):
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        self.done = True
        # Without usage, `end_with` writes the terminator behind an estimate.
        return last if self.lacks_usage else last + _DONE

    def end_with(self, usage: Usage) -> bytes:
        """Return a chunk with this usage, if the client requested it, and the terminator."""
        self.usage = usage
        if not self._wants_usage:
            return _DONE
        chunk = {**self._identity, "object": "chat.completion.chunk", "choices": [], "usage": write_usage(usage)}
        return b"data: " + encode(chunk) + b"\n\n" + _DONE

    def _relay(self, chunk: dict[str, Any]) -> bytes:
        if not self._identity:
            self._identity = answer_identity(chunk, self._metadata)
        # All chunks of an answer must have one id, which some upstreams change from chunk to chunk.
        chunk |= self._identity
        chunk["object"] = "chat.completion.chunk"
        choices = chunk.get("choices")
        if type(choices) is not list:
            choices = chunk["choices"] = []
        # Most chunks have the first choice only, for which there is nothing to join.
        if self._joined and (len(choices) != 1 or choices[0].get("index")) and len(self._choices) + len(choices) > 1:
            choices = chunk["choices"] = self._join(choices)
        before = b""
        for choice in choices:
            index = choice["index"] = choice.get("index") or 0
            known = self._choices.get(index)
            if known is None:
                if len(self._choices) >= _MAX_CHOICES:
                    raise InvalidUpstreamAnswer(f"The upstream's answer has more than {_MAX_CHOICES} choices.")
                known = self._choices[index] = _Choice(self._joined and not index, self.names)
            known.repair(choice)
            if known.rest:
                rest = {"index": index, "delta": {"tool_calls": known.rest}, "logprobs": None, "finish_reason": None}
                last = {**self._identity, "object": "chat.completion.chunk", "choices": [rest]}
                before += b"data: " + encode(last) + b"\n\n"
                known.rest = []
        if (usage := usage_of_chunk(chunk)) and (now := read_usage(usage)):
            self.usage = read = now.following(self.usage)
            chunk["usage"] = {**write_usage(read), **usage}
            # We request usage even if the client did not. Such a client gets no chunk with an empty list of choices:
            # some read `choices[0]` of every chunk. Where a count is missing, `end_with` sends both.
            if not self._wants_usage or read.missing:
                del chunk["usage"]
                if not choices:
                    return before
        return before + b"data: " + encode(chunk) + b"\n\n"

    def _join(self, choices: list[Any]) -> list[Any]:
        """Move the calls of other choices into the first, where one answer was requested.

        Some upstreams put the text into one choice and each call into another; clients read only the first.
        """
        first = self._choices.get(0) or self._choices.setdefault(0, _Choice(waits_for_calls=True, names=self.names))
        kept: list[Any] = []
        ends = False
        for choice in choices:
            source, delta = choice.get("index") or 0, choice.get("delta")
            entries = delta.pop("tool_calls", None) if source and type(delta) is dict else None
            if entries:
                first.moved += first.repair_calls(entries, source)
            if source in first.correlators and source and choice.get("finish_reason"):
                ends = True
            # A choice that held nothing but calls is dropped: no client asked for it.
            if not source or source in self._choices or (type(delta) is dict and delta.get("content")):
                kept.append(choice)
        # The first choice ends with the last of its calls: it has waited for them, or its end came too early.
        ends = ends and (first.waits or (first.reason is not None and first.unended))
        if (first.moved or ends) and not any(not choice.get("index") for choice in kept):
            kept.insert(0, {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None})
        if ends:
            first.reason = None  # a reason that was sent before these calls came is not valid any more
            next(choice for choice in kept if not choice.get("index"))["finish_reason"] = "tool_calls"
        return kept
