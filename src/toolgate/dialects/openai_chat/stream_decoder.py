"""Decode Chat streams.

OpenAI-compatible servers agree on little here. `ToolCallDeltaCorrelator` finds the call that a delta belongs to,
`shared_codec.py` has the vendors' finish reasons, and `event_assembler.py` makes parts of the fragments.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from toolgate.conversation.arguments import arguments_text
from toolgate.conversation.data_urls import media_from_url
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import FinishReason, StepEvent, Usage
from toolgate.conversation.message import NO_EXTRA, Extra, Reasoning, ReasoningSignature
from toolgate.dialects.openai_chat.plain_text_fast_path import decode_text_chunk
from toolgate.dialects.openai_chat.shared_codec import (
    NAME,
    REASONING_FIELDS,
    read_reason,
    read_usage,
    usage_of_chunk,
)
from toolgate.dialects.upstream_errors import decode_error_object
from toolgate.wire.jsontext import decode_event
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

# Fields of a chunk in which some vendors list what the model has read.
SOURCES = ("citations", "search_results")


class ToolCallDeltaCorrelator:
    """Finds the call that an entry of `tool_calls` continues, or begins a new one.

    A new id begins a call, unless the entry has the index of the open call and no name: some servers change the id from
    delta to delta. Without an id, the index decides; a name under an index whose call already has arguments begins a new
    call, because some servers send index 0 every time. Without either, it continues the last call.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        self._names: list[str] = []
        self._has_arguments: list[bool] = []

    def number_of(self, entry: dict[str, Any]) -> int:
        """Return the number of the call, counted from 0 in order of appearance."""
        id, index = entry.get("id"), entry.get("index")
        function = entry.get("function") or entry.get("custom") or {}
        name, argued = function.get("name"), bool(function.get("arguments") or function.get("input"))
        if not id and not name and type(index) is int and (known := self._by_index.get(index)) is not None:
            self._has_arguments[known] = self._has_arguments[known] or argued  # most entries only continue a call
            return known
        number = self._find(id if type(id) is str else None, index if type(index) is int else None, name or "")
        if number is None:
            number = len(self._names)
            self._names.append("")
            self._has_arguments.append(False)
        if id:
            self._by_id.setdefault(str(id), number)
        if type(index) is int:
            self._by_index[index] = number
        self._names[number] = self._names[number] or name or ""
        self._has_arguments[number] = self._has_arguments[number] or argued
        return number

    def _find(self, id: str | None, index: int | None, name: str) -> int | None:
        indexed = self._by_index.get(index) if index is not None else None
        if id:
            # Where id and index belong to different calls, the index decides below.
            if id in self._by_id and (indexed is None or self._by_id[id] == indexed):
                known = self._by_id[id]
                return None if self._is_another(known, name) else known
            # An id that is new, or another call's: with a second name it begins a call, else the index has the call.
            return indexed if indexed is not None and not (name and self._names[indexed]) else None
        if indexed is not None:
            return None if self._is_another(indexed, name) else indexed
        if index is not None or not self._names:
            return None
        # Neither id nor index: whole calls one after another, or more of the last one.
        return None if name and self._names[-1] else len(self._names) - 1

    def _is_another(self, number: int, name: str) -> bool:
        """Return whether a name under a known id or index is another call, not the same name repeated."""
        if not name or not self._has_arguments[number] or not self._names[number]:
            return False
        return name != self._names[number]


def content_parts(content: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield text and thinking of a delta whose content is a list of parts, as Mistral's reasoning models send it."""
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                yield "text", text
            case {"type": "thinking", "thinking": list(inner)}:
                yield "thinking", "".join([one.get("text", "") for one in inner if type(one) is dict])
            case {"type": "thinking", "thinking": str(text)}:
                yield "thinking", text


def split_content(content: Any) -> tuple[str, str]:
    """Return the text and the thinking of content that is not a string; what is no list of parts becomes its JSON."""
    if type(content) is not list:
        return arguments_text(content), ""
    parts = [*content_parts(content)]
    text = "".join([text for kind, text in parts if kind == "text"])
    return text, "".join([text for kind, text in parts if kind == "thinking"])


class ChatStreamDecoder:
    """Decodes the first choice of a chat stream; with `joined`, calls in other choices are taken as its own."""

    def __init__(self, tools: Collection[str], joined: bool = True) -> None:
        self.done = False
        self._joined = joined
        self._parts = EventAssembler(tools)
        # by the choice that holds the call
        self._calls: defaultdict[int, ToolCallDeltaCorrelator] = defaultdict(ToolCallDeltaCorrelator)
        self._reason: FinishReason | None = None
        self.usage: Usage | None = None
        self._citations: list[dict[str, Any]] = []
        self._rest: dict[str, Any] = {}  # what only Chat clients can be given
        self._only_text: bool | None = None  # whether all chunks after the first are plain; None before the first

    def feed(self, frame: ReceivedStreamFrame) -> list[StepEvent]:
        """Return the events that this frame makes certain."""
        data = frame.data.strip()
        if not data:
            return []
        if data == b"[DONE]":
            return self._finish()
        if self._only_text and frame.event is None and (plain := decode_text_chunk(data)) is not None:
            self._parts.text(plain.choices[0].delta.content)
            return self._parts.take()
        # The first chunk has the role, so it is not tried; the first other one that is not plain ends the attempts.
        self._only_text = self._only_text is None
        chunk = decode_event(data)
        if type(chunk) is not dict:
            raise InvalidUpstreamAnswer("The upstream sent a chunk that is not an object.")
        if frame.event == "error":
            self._note_usage(chunk)
            raise decode_error_object(chunk)
        return self.read(chunk)

    def read(self, chunk: dict[str, Any]) -> list[StepEvent]:
        """Return the events that this chunk makes certain."""
        self._note_usage(chunk)
        if chunk.get("error"):
            raise decode_error_object(chunk["error"])
        self._parts.start(chunk.get("id") or None, chunk.get("model") or None)
        for name in SOURCES:
            if chunk.get(name):
                self._rest[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            index, delta = choice.get("index"), choice.get("delta")
            if index:
                # Some servers put each parallel call into a choice of its own, though one choice was requested.
                if self._joined and type(delta) is dict:
                    for entry in delta.get("tool_calls") or ():
                        self._call(entry, index)
                continue
            if type(delta) is dict:
                self._delta(delta)
            if type(logprobs := choice.get("logprobs")) is dict:
                self._parts.logprobs(logprobs.get("content"))
            reason = choice.get("finish_reason")
            if reason == "error":
                raise decode_error_object(choice.get("error") or "The upstream failed while answering.")
            if reason and self._reason is None:
                self._reason = read_reason(str(reason))
                self._parts.flush(cut=self._reason in ("length", "content_filter"))
        return self._parts.take()

    def end(self) -> list[StepEvent]:
        """Return the last events; raise InvalidUpstreamAnswer if the stream was cut short."""
        return [] if self.done else self._finish()

    def _finish(self) -> list[StepEvent]:
        # `[DONE]` alone does not say that the answer is complete: it also follows one that broke off.
        if self._reason is None:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        self.done = True
        self._parts.end(self._reason, self.usage, extra={NAME: self._rest} if self._rest else NO_EXTRA)
        return self._parts.take()

    def _note_usage(self, chunk: dict[str, Any]) -> None:
        if now := read_usage(usage_of_chunk(chunk)):
            self.usage = now.following(self.usage)

    def _delta(self, delta: dict[str, Any]) -> None:
        parts, content = self._parts, delta.get("content")
        if len(delta) == 1 and type(content) is str:  # most chunks
            parts.text(content)
            return
        # One field of each delta is read, as some servers send the same text under two of these names.
        for field in REASONING_FIELDS:
            if type(delta.get(field)) is str and delta[field]:
                parts.reasoning(delta[field])
                parts.sign(ReasoningSignature(NAME, {"field": field}))
                break
        if details := delta.get("reasoning_details"):
            # OpenRouter's form: the text was in another field, and the signatures in it must be sent back.
            parts.sign(ReasoningSignature(NAME, {"field": "reasoning", "reasoning_details": details}))
        if type(content) is str:
            parts.text(content)
        elif type(content) is list:
            for kind, text in content_parts(content):
                (parts.reasoning if kind == "thinking" else parts.text)(text)
        elif content is not None:  # a number, say
            parts.text(arguments_text(content))
        if refusal := delta.get("refusal"):
            parts.refusal(refusal)
        if annotations := delta.get("annotations"):
            self._annotate(annotations)
        for image in delta.get("images") or ():
            match image:
                case {"image_url": {"url": str(url)}}:
                    parts.whole(media_from_url("image", url, NO_EXTRA))
        if type(audio := delta.get("audio")) is dict:
            # Clients of other dialects read the transcript; Chat clients get the sound itself at the end, in one piece.
            parts.text(arguments_text(audio.get("transcript")))
            known = self._rest.setdefault("audio", {})
            for name, value in audio.items():
                joins = type(value) is str and name in ("data", "transcript")
                known[name] = known.get(name, "") + value if joins else value
        for entry in delta.get("tool_calls") or ():
            self._call(entry, 0)
        legacy = delta.get("function_call")
        if type(legacy) is dict:
            parts.call("function_call", name=legacy.get("name"), arguments=arguments_text(legacy.get("arguments")))

    def _annotate(self, annotations: Any) -> None:
        """Add citations to the open text, in the flat form of the Responses API, which has the same fields."""
        given = [one for one in annotations if type(one) is dict] if type(annotations) is list else []
        self._citations += [
            {**one["url_citation"], "type": "url_citation"} if type(one.get("url_citation")) is dict else one
            for one in given
        ]
        self._parts.annotate({"openai_responses": {"annotations": [*self._citations]}})

    def _call(self, entry: Any, choice: int) -> None:
        if type(entry) is not dict:
            raise InvalidUpstreamAnswer("The upstream sent a tool call that is not an object.")
        number = choice, self._calls[choice].number_of(entry)
        freeform = type(entry.get("custom")) is dict
        function = entry.get("custom") if freeform else entry.get("function")
        function = function if type(function) is dict else {}
        # Gemini's API puts the signature of a thought here, and rejects the history if the call comes back without it.
        extra: Extra = {NAME: {"extra_content": entry["extra_content"]}} if entry.get("extra_content") else NO_EXTRA
        if extra:  # a client of another dialect can keep these fields only as reasoning before the call
            self._parts.whole(Reasoning("", ReasoningSignature(NAME, {"next_call": extra[NAME]})))
        self._parts.call(
            number,
            id=arguments_text(entry.get("id")) or None,
            name=function.get("name"),
            arguments=arguments_text(function.get("input" if freeform else "arguments")),
            freeform=freeform,
            extra=extra,
        )
