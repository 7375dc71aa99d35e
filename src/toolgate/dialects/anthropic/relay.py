"""Relay Messages streams and whole answers to Messages clients, repairing only what breaks clients.

Repaired are a missing or second `message_start`, usage without the counts that SDKs require, empty text blocks, repeated or
missing starts and stops, the numbers of blocks, blocks that are open at the same time, characters that are cut in two,
thinking sent into a block of text, inputs that come complete in the start of a call or quoted twice, ids that clients
reject, a stop reason that ignores the calls, and a missing `message_stop`. A call whose arguments turn out to be no JSON
object ends the stream with an error. Unknown fields, blocks and events stay unchanged.
"""

import re
from typing import Any

from toolgate.conversation import call_ids
from toolgate.conversation.arguments import (
    ArgumentTextNormalizer,
    arguments_object,
    arguments_text,
    is_object,
    normalize_arguments,
)
from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.dialects.anthropic.server import encode_error_as_text, encode_stream_error, invalid_arguments
from toolgate.dialects.anthropic.shared_codec import (
    ID_PATTERN,
    event_bytes,
    is_official,
    read_reason,
    read_usage,
    write_message,
    write_reason,
    write_usage,
)
from toolgate.dialects.anthropic.stream_decoder import content_of, object_of, read_event
from toolgate.dialects.dialect import AnswerMetadata, FragmentsForTokenCount, relayed_usage
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

_ID = re.compile(ID_PATTERN)
_BLOCK_EVENTS = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
# The kind of block that a delta belongs into. Deltas of unknown types stay in the block that they name.
_KINDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class _Block:
    """An open block: its number in the relayed stream, once it has one, and what was held back of it."""

    __slots__ = ("arguments", "given_id", "input", "kind", "number", "start", "surrogates")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.kind: str = start["content_block"]["type"]
        self.given_id = start["content_block"].get("id")
        self.number: int | None = None
        self.input: Any = None
        self.arguments = ArgumentTextNormalizer()
        self.surrogates = SurrogateJoiner()

    def is_open_call(self) -> bool:
        """Return whether more arguments may follow."""
        return self.kind == "tool_use" and not is_object(normalize_arguments("".join(self.arguments.fragments) or "?"))


class MessagesStreamRelay:
    """Relays a message stream."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self.done = False
        self.names = CallNameCorrector(tool_names(request.tools))
        self.usage: Usage | None = None
        self._metadata = metadata
        self._began = False
        self._blocks: dict[Any, _Block] = {}
        self._count = 0
        self._current: Any = None  # the index of the call whose end other blocks wait for
        self._waiting: dict[Any, list[dict[str, Any]]] = {}  # events of blocks that began inside a call, by index
        self._ids: set[str] = set()
        self._reason: FinishReason | None = None
        self._invalid_tool: str | None = None  # the tool of a call whose arguments are no object
        self._relayed = FragmentsForTokenCount()
        self._held: dict[str, Any] | None = None  # a message_delta that lacks usage
        self._content: list[dict[str, Any]] = []  # blocks in `message_start`

    @property
    def reason(self) -> FinishReason | None:
        """The finish reason, once the answer has ended."""
        return self._reason

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return len(self._ids)

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete and the upstream did not report both counts."""
        return self.done and (self.usage is None or self.usage.missing is not None)

    def received(self) -> list[Part]:
        """Return the texts of all blocks so far."""
        return self._relayed.parts()

    def feed(self, frame: ReceivedStreamFrame) -> bytes:
        """Return the event as the client should receive it."""
        event = None if self.done else read_event(frame)
        if event is None:
            return b""
        match event["type"]:
            case "content_block_delta" if not self._waiting:  # most events
                return self._begin() + self._delta(event)
            case kind if kind in _BLOCK_EVENTS:
                return self._begin() + self._block_event(event)
            case "message_start":
                return self._begin(event)
            case "message_delta":
                return self._begin() + self._close_all() + self._early_content() + self._message_delta(event)
            case "message_stop":
                return self._begin() + self._finish()
            case _:
                return event_bytes(event)

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as an event; nothing follows it."""
        if self._metadata.loses_errors:
            return self._begin() + encode_error_as_text(error, self._count)
        return encode_stream_error(error, self._metadata.request_id)

    def end(self) -> bytes:
        """Return the last events; raise InvalidUpstreamAnswer if the stream was cut short."""
        if self.done:
            return b""
        if self._reason is None:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        return self._finish()

    def _begin(self, event: dict[str, Any] | None = None) -> bytes:
        if self._began:
            return b""
        self._began = True
        event = event or {"type": "message_start"}
        sent = event.get("message") or {}
        self._content = content_of(sent)
        self.usage = read_usage(sent.get("usage"))
        usage = {**write_usage(self.usage or Usage()), **_without_nulls(sent.get("usage"))}
        default = write_message(self._metadata, [], None, None, Usage())
        message = {**default, **_without_nulls(sent), "content": [], "stop_reason": None, "usage": usage}
        return event_bytes({**event, "message": message})

    def _block_event(self, event: dict[str, Any]) -> bytes:
        """Relay or queue the event: clients read one block at a time, while upstreams may interleave calls."""
        index = event.get("index")
        if not self._waiting:
            if event["type"] != "content_block_start":
                return self._relay_block(event)
            open_calls = [one for one, block in self._blocks.items() if one != index and block.is_open_call()]
            self._current = open_calls[0] if open_calls else None
            if not open_calls:
                return self._relay_block(event)
        elif index == self._current:
            events = self._relay_block(event)
            return events + self._next_blocks() if index not in self._blocks else events
        self._waiting.setdefault(index, []).append(event)
        return b""

    def _next_blocks(self) -> bytes:
        """Relay the queued blocks, up to an open call whose end the others have to wait for."""
        events = b""
        while self._waiting:
            self._current = next(iter(self._waiting))
            events += b"".join([self._relay_block(event) for event in self._waiting.pop(self._current)])
            if self._current in self._blocks and self._blocks[self._current].is_open_call():
                break
        return events

    def _relay_block(self, event: dict[str, Any]) -> bytes:
        match event["type"]:
            case "content_block_delta":
                return self._delta(event)
            case "content_block_start":
                return self._start(event)
            case _:
                return self._stop(event.get("index"))

    def _start(self, event: dict[str, Any]) -> bytes:
        index, value = event.get("index"), object_of(event, "content_block")
        kind = str(value.get("type"))
        before = self._blocks.get(index)
        if before is not None and before.kind == kind and before.given_id == value.get("id"):
            return b""  # some upstreams start a block twice
        closed = self._close_open()
        block = self._blocks[index] = _Block(
            {**event, "content_block": {**_EMPTY.get(kind, {}), **value, "type": kind}}
        )
        if kind == "tool_use":
            call = block.start["content_block"]
            if not call.get("name"):
                raise InvalidUpstreamAnswer("The upstream sent a tool call without a name.")
            call["name"] = self.names.correct(arguments_text(call["name"]))
            # Clients expect an empty input here and read it from deltas, so a whole one is sent as the last delta.
            block.input = call.get("input")
            call |= {"id": repair_id(arguments_text(call.get("id")), self._ids), "input": {}}
            self._ids.add(call["id"])
        self._count_text(value, index)
        if kind == "text" and not value.get("text"):
            return closed  # it starts with its first delta, or not at all
        return closed + self._open(block)

    def _open(self, block: _Block) -> bytes:
        block.number = self._count
        self._count += 1
        return event_bytes({**block.start, "index": block.number})

    def _delta(self, event: dict[str, Any]) -> bytes:
        delta = object_of(event, "delta")
        index, kind = event.get("index"), _KINDS.get(delta.get("type", ""))
        block = self._blocks.get(index)
        if kind == "text" and not delta.get("text"):
            return b""
        before = b""
        # A delta for a block that never began, or of another kind than its block, opens a block of its kind. Clients
        # fail on a delta that does not fit.
        if block is None or (kind is not None and block.kind != kind and block.kind in _EMPTY):
            if kind is None:
                if str(delta.get("partial_json") or "").strip():
                    raise InvalidUpstreamAnswer("The upstream sent arguments for a tool call that it never began.")
                return b""
            open_calls = [one for one, other in self._blocks.items() if one != index and other.is_open_call()]
            if open_calls:  # a text that a call has interrupted goes on behind it
                self._current = open_calls[0]
                self._waiting[index] = [event]
                return b""
            before = self._close_open()
            start = {"type": "content_block_start", "index": index, "content_block": dict(_EMPTY[kind])}
            block = self._blocks[index] = _Block(start)
        if block.number is None:
            before += self._open(block)
        if "partial_json" in delta:
            delta["partial_json"] = block.arguments.feed(arguments_text(delta["partial_json"]))
            if not delta["partial_json"]:
                return before
        elif kind is not None and type(text := delta.get(kind)) is str and text:
            delta[kind] = block.surrogates.feed(text)
            if not delta[kind] and delta.keys() == {"type", kind}:  # half a character, which waits for its other half
                return before
        self._count_text(delta, index)
        event["index"] = block.number
        return before + event_bytes(event)

    def _count_text(self, value: dict[str, Any], index: Any) -> None:
        """Keep the text of a delta, or of a block's start, for counting its tokens."""
        relayed = self._relayed
        match value:
            case {"type": "text_delta" | "text", "text": str(text)}:
                relayed.text.append(text)
            case {"type": "input_json_delta", "partial_json": str(text)}:
                relayed.calls.setdefault((index, len(self._ids)), [""]).append(text)
            case {"type": "tool_use", "name": name}:
                relayed.calls[index, len(self._ids)] = [arguments_text(name)]
            case {"type": "thinking_delta" | "thinking", "thinking": str(text)}:
                relayed.reasoning.append(text)

    def _stop(self, index: Any) -> bytes:
        block = self._blocks.pop(index, None)
        if block is None or block.number is None:
            return b""
        kind, field, arguments = "input_json_delta", "partial_json", block.arguments
        if block.kind in _EMPTY:
            kind, field, text = f"{block.kind}_delta", block.kind, block.surrogates.end()
        elif not arguments.fragments and block.input:
            arguments.feed(arguments_text(block.input))
            text = normalize_arguments("".join(arguments.fragments))
        else:
            # What was held back, as it may have been the beginning of arguments that are quoted twice.
            text = arguments.end() if arguments.fragments else ""
        if (
            block.kind == "tool_use"
            and arguments.fragments
            and not is_object(normalize_arguments("".join(arguments.fragments)))
        ):
            self._invalid_tool = block.start["content_block"]["name"]
        stop = event_bytes({"type": "content_block_stop", "index": block.number})
        if not text:
            return stop
        delta = {"type": kind, field: text}
        return event_bytes({"type": "content_block_delta", "index": block.number, "delta": delta}) + stop

    def _close_open(self) -> bytes:
        return b"".join([self._stop(index) for index in list(self._blocks)])

    def _close_all(self) -> bytes:
        """End the open block and the queued ones."""
        events = b""
        while self._waiting:
            events += self._close_open() + self._next_blocks()
        return events + self._close_open()

    def _early_content(self) -> bytes:
        """Return the blocks that came in `message_start`, if no others followed: clients expect none there."""
        content, self._content = self._content, []
        events = b""
        for index, block in enumerate(content if not self._count else ()):
            events += self._start({"type": "content_block_start", "index": index, "content_block": block})
            events += self._stop(index)
        return events

    def _message_delta(self, event: dict[str, Any]) -> bytes:
        delta = dict(event.get("delta") or {})
        self.usage = read_usage(event.get("usage"), self.usage)
        sent = delta.get("stop_reason")
        if type(sent) is str:
            self._reason, delta["stop_reason"] = repair_reason(sent, bool(self._ids), delta.get("stop_sequence"))
        if self._invalid_tool is not None and self._reason in ("stop", "tool_calls"):
            raise invalid_arguments(self._invalid_tool)
        if self._held is not None:  # the count that was missing comes in an event of its own
            event, delta = {**self._held, **event}, {**self._held["delta"], **_without_nulls(delta)}
            self._held = None
        if self.usage is None or self.usage.missing:
            # SDKs require usage here: `end_with` adds an estimate at the end of the stream.
            self._held = {**event, "delta": delta}
            return b""
        usage = {**write_usage(self.usage), **_without_nulls(event.get("usage"))}
        return event_bytes({**event, "delta": delta, "usage": usage})

    def _finish(self) -> bytes:
        self.done = True
        # A count that came with neither event is estimated: `end_with` then sends the last two events.
        closed = self._close_all() + self._early_content()
        if self._reason is None:  # a message_stop that no reason preceded
            closed += self._message_delta({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
        return closed if self.lacks_usage else closed + event_bytes({"type": "message_stop"})

    def end_with(self, usage: Usage) -> bytes:
        """Return the last events, with this usage."""
        self.usage = usage
        last = {**(self._held or {"type": "message_delta", "delta": {}}), "usage": write_usage(usage)}
        return event_bytes(last) + event_bytes({"type": "message_stop"})


def _without_nulls(value: Any) -> dict[str, Any]:
    return {name: held for name, held in value.items() if held is not None} if type(value) is dict else {}


def repair_id(given: str, used: set[str]) -> str:
    """Return the id if clients accept it and it is new, else one from which the upstream's own can be decoded."""
    if _ID.fullmatch(given) and given not in used:
        return given
    return call_ids.portable_id(given) if given and given not in used else call_ids.new_call_id()


def repair_reason(stop_reason: str, called: bool, stop_sequence: Any) -> tuple[FinishReason, str]:
    """Return the finish reason and the stop reason that agree with whether the answer has calls."""
    reason = read_reason(stop_reason)
    if reason == "stop" and called:
        return "tool_calls", write_reason("tool_calls")
    if reason == "tool_calls" and not called:
        return "stop", write_reason("stop")
    return reason, stop_reason if is_official(stop_reason) else write_reason(reason, stop_sequence)


def repair_response(body: dict[str, Any], response: ModelResponse, metadata: AnswerMetadata) -> dict[str, Any]:
    """Return a whole answer with empty texts left out and calls, stop reason and usage repaired."""
    used: set[str] = set()
    content: list[Any] = []
    for block in body["content"]:
        match block:
            case {"type": "tool_use"}:
                id, given = repair_id(arguments_text(block.get("id")), used), block.get("input")
                used.add(id)
                value = given if type(given) is dict else arguments_object(arguments_text(given))
                content.append({**block, "id": id, "input": value})
            case {"type": "text"} if not block.get("text"):
                pass
            case _:
                content.append(block)
    # Clients may read any field of the API, so each is there; the upstream's values win.
    default = write_message(metadata, content, None, None, response.usage or Usage())
    usage = relayed_usage(default["usage"], _without_nulls(body.get("usage")), response.usage)
    sent = arguments_text(body.get("stop_reason")) or "end_turn"
    _, stop_reason = repair_reason(sent, bool(used), body.get("stop_sequence"))
    fixed = {"content": content, "type": "message", "role": "assistant", "stop_reason": stop_reason, "usage": usage}
    kept = {name: held for name, held in body.items() if held is not None or name not in default}
    return {**default, **kept, **fixed}
