"""Messages streams, read.

Blocks come one after another, but relays repeat starts and stops, leave out inputs and deltas, and send deltas of one kind
into blocks of another. A block is known by its index while it is open; what a delta says decides what it is part of.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.arguments import as_text
from toolgate.conversation.assemble import Assembler
from toolgate.conversation.errors import Garbled
from toolgate.conversation.events import FinishReason, StepEvent, Usage
from toolgate.conversation.message import Opaque, Reasoning, Seal
from toolgate.dialects.anthropic.words import NAME, extra_of, is_peculiar, read_input, read_reason, read_usage
from toolgate.dialects.refusals import read_error_object
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import decode_event

_SPOKEN = ("text", "thinking")
_READ_OF_A_CALL = ("type", "id", "name", "input")
_READ_OF_A_DELTA = ("type", "delta", "usage", "stop_reason", "stop_sequence")


def read_event(frame: Frame) -> dict[str, Any] | None:
    """The event in a frame under its type, or None if it says nothing; raises the failure that it tells of."""
    data = frame.data.strip()
    if not data:
        return None
    if data == b"[DONE]":
        return {"type": "message_stop"}
    event = decode_event(data)
    if type(event) is not dict:
        raise Garbled("The upstream sent an event that is not an object.")
    kind = event.get("type") or frame.event
    if kind == "error" or frame.event == "error" or (event.get("error") and "delta" not in event):
        raise read_error_object(event)
    event["type"] = str(kind)
    return event


def object_of(event: dict[str, Any], name: str) -> dict[str, Any]:
    """What an event of this type must hold."""
    value = event.get(name)
    if type(value) is not dict:
        raise Garbled(f"The upstream sent an event of type {event['type']!r} without {name}.")
    return value


class _Block:
    """A block that is open."""

    __slots__ = ("citations", "fields", "fragments", "key", "kind", "value")

    def __init__(self, value: dict[str, Any], key: int) -> None:
        self.value = value
        self.kind = value.get("type")
        self.key = key
        self.fragments: list[str] = []  # the input, piece by piece
        self.citations: list[Any] = list(value.get("citations") or ())
        self.fields: dict[str, list[Any]] = {}  # what deltas we do not know said of it

    def is_said_again(self, value: dict[str, Any]) -> bool:
        return self.kind == value.get("type") and self.value.get("id") == value.get("id")

    def whole(self) -> dict[str, Any]:
        """A block of a kind we do not know, with everything that was said of it."""
        value = dict(self.value)
        if text := "".join(self.fragments):
            value["input"] = _read_json(text)
        for name, said in self.fields.items():
            given = value.get(name)
            said = [given, *said] if type(given) is str else said
            value[name] = "".join(said) if all(type(piece) is str for piece in said) else said[-1]
        return value


def _read_json(text: str) -> Any:
    try:
        return decode_event(text.encode("utf-8", "replace"))
    except Garbled:
        return {"INVALID_JSON": text}


class MessagesDecoder:
    """Reads one streamed message."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self._parts = Assembler(tools)
        self._blocks: dict[Any, _Block] = {}
        self._count = 0
        self._last_call: int | None = None
        self._reason: FinishReason | None = None
        self._stop_sequence: str | None = None
        self.usage: Usage | None = None
        self._rest: dict[str, Any] = {}

    def feed(self, frame: Frame) -> list[StepEvent]:
        """What this frame makes certain."""
        event = None if self.done else read_event(frame)
        return [] if event is None else self.read(event)

    def read(self, event: dict[str, Any]) -> list[StepEvent]:
        """What this event makes certain; one of a type we do not know makes nothing certain."""
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
                self._parts.start(message.get("id") or None, message.get("model") or None, self.usage)
            case "message_delta":
                self._message_delta(event)
            case "message_stop":
                self._finish()
        return self._parts.take()

    def end(self) -> list[StepEvent]:
        """What the end of the stream makes certain."""
        if self.done:
            return []
        if self._reason is None:
            raise Garbled("The upstream's stream ended before the answer was complete.")
        self._finish()
        return self._parts.take()

    def _finish(self) -> None:
        self.done = True
        for index in list(self._blocks):
            self._stop(index)
        self._parts.end(self._reason or "stop", self.usage, self._stop_sequence, extra_of(self._rest))

    def _start(self, index: Any, value: dict[str, Any]) -> None:
        if (open_block := self._blocks.get(index)) is not None:
            if open_block.is_said_again(value):
                return
            self._stop(index)
        self._end_last_call()
        self._count += 1
        block = self._blocks[index] = _Block(value, self._count)
        match value:
            case {"type": "text"}:
                self._parts.text(value.get("text") or "")
            case {"type": "thinking"}:
                self._think(value)
            case {"type": "redacted_thinking", "data": str(data)}:
                self._parts.whole(Reasoning("", Seal(NAME, {"data": data})))
            case {"type": "tool_use"}:
                rest = {name: held for name, held in value.items() if name not in _READ_OF_A_CALL}
                id, name = as_text(value.get("id")), as_text(value.get("name"))
                self._parts.call(block.key, id=id or None, name=name or None, extra=extra_of(rest))

    def _end_last_call(self) -> None:
        """The model went on, so the call that stopped before was not cut off."""
        if self._last_call is not None:
            self._parts.end_call(self._last_call)
            self._last_call = None

    def _delta(self, index: Any, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                self._parts.text(as_text(delta.get("text")))
            case "input_json_delta":
                self._input(index, as_text(delta.get("partial_json")))
            case "thinking_delta" | "signature_delta":
                self._think(delta)
            case "citations_delta" if index in self._blocks:
                self._blocks[index].citations.append(delta.get("citation"))
            case _ if index in self._blocks:
                for name, value in delta.items():
                    if name != "type":
                        self._blocks[index].fields.setdefault(name, []).append(value)

    def _think(self, said: dict[str, Any]) -> None:
        """Thinking, its signature, or both at once."""
        self._parts.reasoning(said.get("thinking") or "")
        if signature := said.get("signature"):
            self._parts.seal(Seal(NAME, {"signature": signature}))

    def _input(self, index: Any, text: str) -> None:
        block = self._blocks.get(index)
        if block is None:
            if text.strip():
                raise Garbled("The upstream sent arguments for a tool call that it never began.")
            return
        block.fragments.append(text)
        if block.kind == "tool_use":
            self._parts.call(block.key, arguments=text)

    def _stop(self, index: Any) -> None:
        """The block is over; a call stays open until something follows it, for it may have been cut off."""
        block = self._blocks.pop(index, None)
        if block is None:
            return
        if block.kind in _SPOKEN:
            if block.citations:
                self._parts.annotate({NAME: {"citations": block.citations}})
            self._parts.end_part()
        elif block.kind == "tool_use":
            if not any(block.fragments) and block.value.get("input"):
                self._parts.call(block.key, arguments=read_input(block.value["input"]))
            self._end_last_call()
            self._last_call = block.key
        elif block.kind != "redacted_thinking":
            self._parts.whole(Opaque(NAME, block.whole()))

    def _message_delta(self, event: dict[str, Any]) -> None:
        delta = event.get("delta") or {}
        self.usage = read_usage(event.get("usage"), self.usage)
        if type(word := delta.get("stop_reason")) is str:
            self._reason = read_reason(word)
            self._stop_sequence = delta.get("stop_sequence")
            if is_peculiar(word):
                self._rest["stop_reason"] = word
        said = {**event, **delta}
        self._rest |= {
            name: value for name, value in said.items() if name not in _READ_OF_A_DELTA and value is not None
        }
