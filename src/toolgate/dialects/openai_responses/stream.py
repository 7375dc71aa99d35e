"""Responses streams, read: what an event says of which item.

Everything that has to do with whole parts is `assemble.py`'s, finding the item is `correlate.py`'s. Text that a stream
tells only at the end of a part, of an item or of the whole response is taken from there.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.arguments import as_text, is_object, settled
from toolgate.conversation.assemble import Assembler
from toolgate.conversation.errors import Garbled
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.message import Opaque
from toolgate.dialects.openai_responses.correlate import CALLS, Correlator, Item, item_of
from toolgate.dialects.openai_responses.items import message_mark, read_image, said_extra
from toolgate.dialects.openai_responses.words import NAME, own_extra, read_reason, read_reasoning, read_usage
from toolgate.dialects.refusals import read_error_object
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import decode_event

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
UNENDED = ("incomplete", "in_progress")
"""The states of a call, in the last word on it, in which it may have been cut off."""
_CALL_FIELDS = ("type", "id", "call_id", "name", "arguments", "input", "status")
_MESSAGE_FIELDS = ("type", "id", "role", "content", "status")


def read_event(frame: Frame) -> tuple[str, dict[str, Any]] | None:
    """The type and the body of an event, None for a keep-alive; raises if it tells of a failure."""
    data = frame.data.strip()
    if not data:
        return None
    if data == b"[DONE]":
        return "[DONE]", {}
    event = decode_event(data)
    if type(event) is not dict:
        raise Garbled("The upstream sent an event that is not an object.")
    kind = event.get("type") or frame.event
    if kind == "error" or event.get("error"):
        raise read_error_object(event.get("error") or event)
    if type(kind) is not str:
        raise Garbled("The upstream sent an event without a type.")
    return kind, event


def response_of(event: dict[str, Any]) -> dict[str, Any]:
    """The Response object in the last event of a stream; raises if it failed."""
    response = event.get("response")
    if type(response) is not dict:
        raise Garbled("The upstream ended its stream without a response.")
    check(response)
    return response


def usage_of(body: Any) -> Usage | None:
    """What a Response object says that it used, even one that failed."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def check(response: dict[str, Any]) -> None:
    """Raise if the response tells of a failure or is not there yet."""
    status, error = response.get("status"), response.get("error")
    if error or status in ("failed", "cancelled"):
        raise read_error_object(error or f"The upstream says that the response was {status}.")
    if status in ("queued", "in_progress"):
        raise Garbled("The upstream's answer ended before it was complete.")


def rest_of_arguments(item: Item, value: dict[str, Any]) -> str:
    """What the final arguments of a call say beyond its deltas; where they contradict, a call that was told whole stands."""
    final = as_text(value.get("input" if item.kind == "custom_tool_call" else "arguments"))
    told = "".join(item.fragments)
    if final.startswith(told):
        return final[len(told) :]
    if final and item.kind == "function_call" and not is_object(settled(told)):
        raise Garbled("The upstream sent arguments of a tool call in pieces that do not make the whole.")
    return ""


class ResponsesDecoder:
    """Reads the events of one response."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self.usage: Usage | None = None
        self._parts = Assembler(tools)
        self._items = Correlator()
        self._speaking: tuple[int, object] | None = None  # the item and the part of it that is being told
        self._voices: dict[int, str] = {}  # what a reasoning item is told by: its summary or the thoughts themselves

    def feed(self, frame: Frame) -> list[StepEvent]:
        """What this frame makes certain."""
        if self.done:
            return []
        read = read_event(frame)
        if read is None:
            return []
        kind, event = read
        if kind == "[DONE]":
            return self.end()
        self.usage = usage_of(event.get("response")) or self.usage
        self._read(kind, event)
        return self._parts.take()

    def end(self) -> list[StepEvent]:
        """What the end of the stream makes certain."""
        if not self.done:
            raise Garbled("The upstream's stream ended before the answer was complete.")
        return []

    def read_whole(self, body: dict[str, Any]) -> list[StepEvent]:
        """A whole answer."""
        check(body)
        if type(body.get("output")) is not list:
            raise Garbled("The upstream's answer holds no output.")
        self._finish(body)
        return self._parts.take()

    def _read(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "response.output_text.delta":
                self._say(
                    self._items.of_type("message", event), kind, event.get("content_index") or 0, event.get("delta")
                )
            case "response.output_item.added":
                self._added(event)
            case "response.output_item.done":
                self._item_done(event)
            case _ if kind in TERMINAL:
                self._finish(response_of(event))
            case _ if type(response := event.get("response")) is dict:
                self._parts.start(response.get("id") or None, response.get("model") or None)
            case _ if item := self._items.within(kind, event):
                self._read_within(kind, event, item)

    def _read_within(self, kind: str, event: dict[str, Any], item: Item) -> None:
        index = event.get("content_index") or 0
        match kind:
            case "response.refusal.delta":
                self._say(item, kind, index, event.get("delta"))
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._argue(item, event.get("delta"))
            case "response.output_text.done" | "response.refusal.done" if index not in item.told:
                self._say(item, kind, index, event.get("text") or event.get("refusal"))
            case "response.function_call_arguments.done" | "response.custom_tool_call_input.done":
                self._argue_rest(item, event)
            case "response.content_part.done":
                self._annotate(item, index, event.get("part"))
            case _ if item.kind == "reasoning":
                self._reason(kind, event, item)

    def _turn_to(self, item: Item, part: object) -> None:
        """Speak of this part of this item from now on: what was being told is over."""
        if self._speaking != (item.number, part):
            self._parts.end_part()
            self._speaking = (item.number, part)

    def _say(self, item: Item, kind: str, index: int, text: Any) -> None:
        if type(text) is not str or not text or item.over:
            return
        self._turn_to(item, index)
        item.told.add(index)
        if kind.startswith("response.refusal"):
            self._parts.refusal(text)
        else:
            self._parts.text(text)

    def _reason(self, kind: str, event: dict[str, Any], item: Item) -> None:
        """Thoughts and summaries may both be told; whichever comes first is shown, both are kept for the way back."""
        summary = "summary" in kind
        voice, text = "summary" if summary else "content", event.get("delta")
        index = event.get("summary_index" if summary else "content_index") or 0
        if kind.endswith(("text.done", "reasoning.done")):
            text = event.get("text") if index not in item.told else None
        if type(text) is not str or not text or self._voices.setdefault(item.number, voice) != voice:
            return
        self._turn_to(item, voice)
        if summary and item.told and index not in item.told:
            self._parts.reasoning("\n\n")
        item.told.add(index)
        self._parts.reasoning(text)

    def _added(self, event: dict[str, Any]) -> None:
        item, value = self._items.added(event), item_of(event)
        item.announced, item.value = True, value
        if item.kind in CALLS and not item.over:
            self._call(item, value)

    def _item_done(self, event: dict[str, Any]) -> None:
        item, value = self._items.done(event), item_of(event)
        if item.over:
            return
        match item.kind:
            case "message":
                self._end_message(item, value)
            case "reasoning":
                self._end_reasoning(item, value)
            case "function_call" | "custom_tool_call":
                self._call(item, value)
                self._argue_rest(item, value)
                if value.get("status") not in UNENDED:
                    self._parts.end_call(item.number)
            case "image_generation_call" if type(value.get("result")) is str:
                self._parts.whole(read_image(value))
            case _:
                self._parts.whole(Opaque(NAME, value))
        item.over = True

    def _end_message(self, item: Item, value: dict[str, Any]) -> None:
        item.value = value
        content = value.get("content")
        for index, part in enumerate(content if type(content) is list else ()):
            if type(part) is dict:
                kind = "response.refusal" if part.get("type") == "refusal" else "response.output_text"
                if index not in item.told:
                    self._say(item, kind, index, part.get("refusal") or part.get("text"))
                self._annotate(item, index, part)
        self._parts.end_part()

    def _annotate(self, item: Item, index: int, part: Any) -> None:
        """Keep what else is said of the text being told, and of the message it is in."""
        if type(part) is not dict or self._speaking != (item.number, index):
            return
        own = {name: value for name, value in part.items() if name not in ("type", "text", "refusal")}
        about = {name: value for name, value in item.value.items() if name not in _MESSAGE_FIELDS and value is not None}
        mark = message_mark(about) if index == min(item.told) else {"continues": True}
        self._parts.logprobs(own.get("logprobs"), whole=True)
        self._parts.annotate(said_extra({**own, **mark}))

    def _end_reasoning(self, item: Item, value: dict[str, Any]) -> None:
        whole = read_reasoning(value)
        if not item.told and whole.text:
            self._turn_to(item, "whole")
            self._parts.reasoning(whole.text)
        if whole.seal is not None:
            if not item.told and not whole.text:
                self._turn_to(item, "whole")
            self._parts.seal(whole.seal)
        self._parts.end_part()

    def _call(self, item: Item, value: dict[str, Any]) -> None:
        own = {name: inner for name, inner in value.items() if name not in _CALL_FIELDS and inner is not None}
        self._parts.call(
            item.number,
            id=item.given or value.get("id") or None,
            name=value.get("name"),
            freeform=item.kind == "custom_tool_call",
            extra=own_extra(own),
        )

    def _argue(self, item: Item, text: Any) -> None:
        if type(text) is str and text and not item.over:
            item.fragments.append(text)
            self._parts.call(item.number, arguments=text, freeform=item.kind == "custom_tool_call")

    def _argue_rest(self, item: Item, value: dict[str, Any]) -> None:
        self._argue(item, rest_of_arguments(item, value))

    def _finish(self, response: dict[str, Any]) -> None:
        self._parts.start(response.get("id") or None, response.get("model") or None)
        output = response.get("output")
        untold = not self._items.items
        for index, value in enumerate(output if type(output) is list else ()):
            known = None if untold else self._items.unfinished(value)
            if untold or known is not None:
                self._item_done({"output_index": known.index if known else index, "item": value})
        self.done = True
        self.usage = usage_of(response)
        self._parts.end(read_reason(response), self.usage)
