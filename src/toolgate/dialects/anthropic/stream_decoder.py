"""Decode Messages streams.

Blocks come one after another, but some upstreams repeat starts and stops, leave out inputs and deltas, and send deltas of
one kind into blocks of another. A block is known by its index while it is open; the type of a delta decides what it adds.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.arguments import arguments_text
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import FinishReason, StepEvent, Usage
from toolgate.conversation.message import Opaque, Reasoning, ReasoningSignature
from toolgate.dialects.anthropic.shared_codec import NAME, extra_of, is_peculiar, read_input, read_reason, read_usage
from toolgate.dialects.upstream_errors import decode_error_object
from toolgate.wire.jsontext import decode_event
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

_TEXT_KINDS = ("text", "thinking")
_CALL_FIELDS = ("type", "id", "name", "input")
_MESSAGE_DELTA_FIELDS = ("type", "delta", "usage", "stop_reason", "stop_sequence")


def read_event(frame: ReceivedStreamFrame) -> dict[str, Any] | None:
    """Decode the event in a frame; None for a keep-alive; raise UpstreamError for an error event."""
    data = frame.data.strip()
    if not data:
        return None
    if data == b"[DONE]":  # Chat's terminator, which some compatible servers send here, too
        return {"type": "message_stop"}
    event = decode_event(data)
    if type(event) is not dict:
        raise InvalidUpstreamAnswer("The upstream sent an event that is not an object.")
    kind = event.get("type") or frame.event
    if kind == "error" or frame.event == "error" or (event.get("error") and "delta" not in event):
        raise decode_error_object(event)
    event["type"] = str(kind)
    return event


def object_of(event: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object in an event that must have it."""
    value = event.get(name)
    if type(value) is not dict:
        raise InvalidUpstreamAnswer(f"The upstream sent an event of type {event['type']!r} without {name}.")
    return value


def content_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks in a `message_start`, where the API has none: they count if no others follow."""
    content = message.get("content")
    return [block for block in content if type(block) is dict] if type(content) is list else []


class _Block:
    """An open content block."""

    __slots__ = ("citations", "fields", "fragments", "key", "kind", "value")

    def __init__(self, value: dict[str, Any], key: int) -> None:
        self.value = value
        self.kind = value.get("type")
        self.key = key
        self.fragments: list[str] = []  # of the input
        self.citations: list[Any] = list(value.get("citations") or ())
        self.fields: dict[str, list[Any]] = {}  # fields of deltas of unknown types

    def whole(self) -> dict[str, Any]:
        """Return a block of an unknown kind, with the fields of all its deltas."""
        value = dict(self.value)
        if text := "".join(self.fragments):
            try:
                value["input"] = decode_event(text.encode("utf-8", "replace"))
            except InvalidUpstreamAnswer:
                value["input"] = {"INVALID_JSON": text}
        for name, fragments in self.fields.items():
            given = value.get(name)
            fragments = [given, *fragments] if type(given) is str else fragments
            value[name] = "".join(fragments) if all(type(one) is str for one in fragments) else fragments[-1]
        return value


class MessagesStreamDecoder:
    """Decodes one streamed message."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self._parts = EventAssembler(tools)
        self._blocks: dict[Any, _Block] = {}  # the open ones, by index
        self._count = 0  # of all blocks: the key of a call, because some upstreams give every block the index 0
        self._last_call: int | None = None  # a call that has stopped, until something follows it
        self._reason: FinishReason | None = None
        self._stop_sequence: str | None = None
        self.usage: Usage | None = None
        self._content: list[dict[str, Any]] = []  # blocks in `message_start`
        self._rest: dict[str, Any] = {}

    def feed(self, frame: ReceivedStreamFrame) -> list[StepEvent]:
        """Return the events that this frame makes certain."""
        event = None if self.done else read_event(frame)
        return [] if event is None else self.read(event)

    def read(self, event: dict[str, Any]) -> list[StepEvent]:
        """Return the events that this event makes certain; one of an unknown type makes none certain."""
        index = event.get("index")
        match event["type"]:
            case "content_block_delta":
                self._delta(index, object_of(event, "delta"))
            case "content_block_start":
                self._start(index, object_of(event, "content_block"))
            case "content_block_stop":
                self._stop(index)
            case "message_start":
                message = event.get("message") or {}
                self.usage = read_usage(message.get("usage"))
                self._content = content_of(message)
                self._parts.start(message.get("id") or None, message.get("model") or None, self.usage)
            case "message_delta":
                delta = event.get("delta") or {}
                self.usage = read_usage(event.get("usage"), self.usage)
                if type(stop_reason := delta.get("stop_reason")) is str:
                    self._reason = read_reason(stop_reason)
                    self._stop_sequence = delta.get("stop_sequence")
                    if is_peculiar(stop_reason):  # a Messages client gets it in place of the nearest other one
                        self._rest["stop_reason"] = stop_reason
                for name, value in {**event, **delta}.items():
                    if name not in _MESSAGE_DELTA_FIELDS and value is not None:
                        self._rest[name] = value
            case "message_stop":
                self._finish()
        return self._parts.take()

    def end(self) -> list[StepEvent]:
        """Return the last events; raise InvalidUpstreamAnswer if the stream was cut short."""
        if self.done:
            return []
        if self._reason is None:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        self._finish()
        return self._parts.take()

    def _finish(self) -> None:
        self.done = True
        for index in list(self._blocks):
            self._stop(index)
        if self._parts.is_empty:
            for index, block in enumerate(self._content):
                self._start(index, block)
                self._stop(index)
        self._parts.end(self._reason or "stop", self.usage, self._stop_sequence, extra_of(self._rest))

    def _start(self, index: Any, value: dict[str, Any]) -> None:
        if (open_block := self._blocks.get(index)) is not None:
            if open_block.kind == value.get("type") and open_block.value.get("id") == value.get("id"):
                return  # the same start again
            self._stop(index)
        self._end_last_call()
        self._count += 1
        block = self._blocks[index] = _Block(value, self._count)
        match value:
            case {"type": "text"}:
                self._parts.text(value.get("text") or "")
            case {"type": "thinking"}:
                self._add_thinking(value)
            case {"type": "redacted_thinking", "data": str(data)}:
                self._parts.whole(Reasoning("", ReasoningSignature(NAME, {"data": data})))
            case {"type": "tool_use"}:
                rest = {name: held for name, held in value.items() if name not in _CALL_FIELDS}
                id, name = arguments_text(value.get("id")), arguments_text(value.get("name"))
                self._parts.call(block.key, id=id or None, name=name or None, extra=extra_of(rest))

    def _end_last_call(self) -> None:
        """End the call that stopped before: something follows it, so it was not cut off."""
        if self._last_call is not None:
            self._parts.end_call(self._last_call)
            self._last_call = None

    def _delta(self, index: Any, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                text = delta.get("text")
                self._parts.text(text if type(text) is str else arguments_text(text))
            case "input_json_delta":
                block, text = self._blocks.get(index), arguments_text(delta.get("partial_json"))
                if block is not None:
                    block.fragments.append(text)
                    if block.kind == "tool_use":
                        self._parts.call(block.key, arguments=text)
                elif text.strip():
                    raise InvalidUpstreamAnswer("The upstream sent arguments for a tool call that it never began.")
            case "thinking_delta" | "signature_delta":
                self._add_thinking(delta)
            case "citations_delta" if index in self._blocks:
                self._blocks[index].citations.append(delta.get("citation"))
            case _ if index in self._blocks:  # for a block of an unknown kind, which is kept with what its deltas add
                for name, value in delta.items():
                    if name != "type":
                        self._blocks[index].fields.setdefault(name, []).append(value)

    def _add_thinking(self, value: dict[str, Any]) -> None:
        """Add the thinking, the signature or both of a delta or a block's start."""
        self._parts.reasoning(value.get("thinking") or "")
        if signature := value.get("signature"):
            self._parts.sign(ReasoningSignature(NAME, {"signature": signature}))

    def _stop(self, index: Any) -> None:
        """End a block; a call stays open until something follows it, because it may have been cut off."""
        block = self._blocks.pop(index, None)
        if block is None:
            return
        if block.kind in _TEXT_KINDS:
            if block.citations:
                self._parts.annotate({NAME: {"citations": block.citations}})
            self._parts.end_part()
        elif block.kind == "tool_use":
            # Some upstreams send the whole input in the start of the block and no deltas.
            if not any(block.fragments) and block.value.get("input"):
                self._parts.call(block.key, arguments=read_input(block.value["input"]))
            self._end_last_call()
            self._last_call = block.key
        elif block.kind != "redacted_thinking":
            self._parts.whole(Opaque(NAME, block.whole()))
