"""Decode Responses streams.

`event_assembler.py` makes parts of the fragments, `item_correlator.py` finds the item of an event. Text that a stream
sends only at the end of a part, of an item or of the whole response is taken from there.
"""

from collections.abc import Collection
from typing import Any

from toolgate.conversation.arguments import arguments_text, is_object, normalize_arguments
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.message import Opaque
from toolgate.dialects.openai_responses.input_items import message_mark, part_extra, read_image
from toolgate.dialects.openai_responses.item_correlator import CALLS, ItemCorrelator, UpstreamOutputItem, item_of
from toolgate.dialects.openai_responses.shared_codec import NAME, own_extra, read_reason, read_reasoning, read_usage
from toolgate.dialects.upstream_errors import decode_error_object
from toolgate.wire.jsontext import decode_event
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
# The final states of a call in which it may have been cut off. Some upstreams leave whole calls "in_progress".
UNENDED = ("incomplete", "in_progress")
_CALL_FIELDS = ("type", "id", "call_id", "name", "arguments", "input", "status")
_MESSAGE_FIELDS = ("type", "id", "role", "content", "status")


def read_event(frame: ReceivedStreamFrame) -> tuple[str, dict[str, Any]] | None:
    """Decode the type and the body of an event; None for a keep-alive; raise UpstreamError for an error event."""
    data = frame.data.strip()
    if not data:
        return None
    if data == b"[DONE]":
        return "[DONE]", {}
    event = decode_event(data)
    if type(event) is not dict:
        raise InvalidUpstreamAnswer("The upstream sent an event that is not an object.")
    kind = event.get("type") or frame.event
    if kind == "error" or event.get("error"):
        raise decode_error_object(event.get("error") or event)
    if type(kind) is not str:
        raise InvalidUpstreamAnswer("The upstream sent an event without a type.")
    return kind, event


def response_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return the Response object in the last event of a stream; raise UpstreamError if it failed."""
    response = event.get("response")
    if type(response) is not dict:
        raise InvalidUpstreamAnswer("The upstream ended its stream without a response.")
    check(response)
    return response


def usage_of(body: Any) -> Usage | None:
    """Return the usage that a Response object reports, even one that failed."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def check(response: dict[str, Any]) -> None:
    """Raise UpstreamError if the response failed or is not complete."""
    status, error = response.get("status"), response.get("error")
    if error or status in ("failed", "cancelled"):
        raise decode_error_object(error or f"The upstream reports that the response was {status}.")
    if status in ("queued", "in_progress"):
        raise InvalidUpstreamAnswer("The upstream's answer ended before it was complete.")


def rest_of_arguments(item: UpstreamOutputItem, value: dict[str, Any]) -> str:
    """Return what the final arguments of a call add to its deltas; if they differ, deltas that are complete prevail."""
    final = arguments_text(value.get("input" if item.kind == "custom_tool_call" else "arguments"))
    received = "".join(item.fragments)
    if final.startswith(received):
        return final[len(received) :]
    if final and item.kind == "function_call" and not is_object(normalize_arguments(received)):
        raise InvalidUpstreamAnswer("The upstream sent arguments of a tool call in deltas that differ from the whole.")
    return ""


def is_cut(value: dict[str, Any], arguments: str) -> bool:
    """Return whether the last event of a call leaves it incomplete, by its status and by its arguments."""
    if value["type"] == "custom_tool_call":
        return value.get("status") == "incomplete"
    return value.get("status") in UNENDED and not (arguments and is_object(normalize_arguments(arguments)))


class ResponsesStreamDecoder:
    """Decodes the events of one response."""

    def __init__(self, tools: Collection[str]) -> None:
        self.done = False
        self.usage: Usage | None = None
        self._parts = EventAssembler(tools)
        self._items = ItemCorrelator()
        self._open_part: tuple[int, object] | None = None  # the number of the item and the part of it that is open
        self._cut = False  # a call was cut off, whatever status the response has
        self._reasoning_source: dict[int, str] = {}  # where a reasoning item's text is from: "summary" or "content"

    def feed(self, frame: ReceivedStreamFrame) -> list[StepEvent]:
        """Return the events that this frame makes certain."""
        if self.done:
            return []
        read = read_event(frame)
        if read is None:
            return []
        kind, event = read
        if kind == "[DONE]":
            return self.end()
        self._note_usage(event.get("response"))
        match kind:
            case "response.output_text.delta":
                item, index = self._items.of_type("message", event), event.get("content_index") or 0
                self._add_text(item, kind, index, event.get("delta"))
            case "response.output_item.added":
                item, value = self._items.added(event), item_of(event)
                item.announced, item.value = True, value
                if item.kind in CALLS and not item.over:
                    self._add_call(item, value)
            case "response.output_item.done":
                self._item_done(event)
            case _ if kind in TERMINAL:
                self._finish(response_of(event))
            case _ if type(response := event.get("response")) is dict:
                self._parts.start(response.get("id") or None, response.get("model") or None)
            case _ if found := self._items.within(kind, event):
                self._read_within(kind, event, found)
        return self._parts.take()

    def end(self) -> list[StepEvent]:
        """Return nothing, or raise InvalidUpstreamAnswer if the stream was cut short."""
        if not self.done:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        return []

    def read_whole(self, body: dict[str, Any]) -> list[StepEvent]:
        """Decode a whole answer."""
        check(body)
        if type(body.get("output")) is not list:
            raise InvalidUpstreamAnswer("The upstream's answer holds no output.")
        self._finish(body)
        return self._parts.take()

    def _read_within(self, kind: str, event: dict[str, Any], item: UpstreamOutputItem) -> None:
        index = event.get("content_index") or 0
        match kind:
            case "response.refusal.delta":
                self._add_text(item, kind, index, event.get("delta"))
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._add_arguments(item, event.get("delta"))
            case "response.output_text.done" | "response.refusal.done" if index not in item.with_text:
                self._add_text(item, kind, index, event.get("text") or event.get("refusal"))
            case "response.function_call_arguments.done" | "response.custom_tool_call_input.done":
                self._add_arguments(item, rest_of_arguments(item, event))
            case "response.content_part.done":
                self._annotate(item, index, event.get("part"))
            case _ if item.kind == "reasoning":
                self._add_reasoning(kind, event, item)

    def _switch_to(self, item: UpstreamOutputItem, part: object) -> None:
        """End the open part, unless it is this part of this item."""
        if self._open_part != (item.number, part):
            self._parts.end_part()
            self._open_part = (item.number, part)

    def _add_text(self, item: UpstreamOutputItem, kind: str, index: int, text: Any) -> None:
        if type(text) is not str or not text or item.over:
            return
        self._switch_to(item, index)
        item.with_text.add(index)
        if kind.startswith("response.refusal"):
            self._parts.refusal(text)
        else:
            self._parts.text(text)

    def _add_reasoning(self, kind: str, event: dict[str, Any], item: UpstreamOutputItem) -> None:
        """Add a delta of reasoning or of its summary; of the two, only the one that comes first is emitted."""
        summary = "summary" in kind
        source, text = "summary" if summary else "content", event.get("delta")
        index = event.get("summary_index" if summary else "content_index") or 0
        if kind.endswith(("text.done", "reasoning.done")):
            text = event.get("text") if index not in item.with_text else None
        if type(text) is not str or not text or self._reasoning_source.setdefault(item.number, source) != source:
            return
        self._switch_to(item, source)
        # The parts of a summary are paragraphs, as `read_reasoning` joins those of a whole item.
        if summary and item.with_text and index not in item.with_text:
            self._parts.reasoning("\n\n")
        item.with_text.add(index)
        self._parts.reasoning(text)

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
                self._add_call(item, value)
                self._add_arguments(item, rest_of_arguments(item, value))
                self._cut = self._cut or is_cut(value, "".join(item.fragments))
                # A call that may have been cut off is closed with the response, whose reason decides.
                if value.get("status") not in UNENDED:
                    self._parts.end_call(item.number)
            case "image_generation_call" if type(value.get("result")) is str:
                self._parts.whole(read_image(value))
            case _:
                self._parts.whole(Opaque(NAME, value))
        item.over = True

    def _end_message(self, item: UpstreamOutputItem, value: dict[str, Any]) -> None:
        item.value = value
        content = value.get("content")
        for index, part in enumerate(content if type(content) is list else ()):
            if type(part) is dict:
                kind = "response.refusal" if part.get("type") == "refusal" else "response.output_text"
                if index not in item.with_text:
                    self._add_text(item, kind, index, part.get("refusal") or part.get("text"))
                self._annotate(item, index, part)
        self._parts.end_part()

    def _annotate(self, item: UpstreamOutputItem, index: int, part: Any) -> None:
        """Keep the other fields of the open part, and of the message it is in."""
        if type(part) is not dict or self._open_part != (item.number, index):
            return
        own = {name: value for name, value in part.items() if name not in ("type", "text", "refusal")}
        message = {
            name: value for name, value in item.value.items() if name not in _MESSAGE_FIELDS and value is not None
        }
        mark = message_mark(message) if index == min(item.with_text) else {"continues": True}
        self._parts.logprobs(own.get("logprobs"), whole=True)
        self._parts.annotate(part_extra({**own, **mark}))

    def _end_reasoning(self, item: UpstreamOutputItem, value: dict[str, Any]) -> None:
        whole = read_reasoning(value)
        if not item.with_text and whole.text:
            self._switch_to(item, "whole")
            self._parts.reasoning(whole.text)
        if whole.signature is not None:
            # Encrypted reasoning without a text is a part of its own, and must not sign the one before.
            if not item.with_text and not whole.text:
                self._switch_to(item, "whole")
            self._parts.sign(whole.signature)
        self._parts.end_part()

    def _add_call(self, item: UpstreamOutputItem, value: dict[str, Any]) -> None:
        own = {name: inner for name, inner in value.items() if name not in _CALL_FIELDS and inner is not None}
        self._parts.call(
            item.number,
            id=item.given_call_id or value.get("id") or None,
            name=value.get("name"),
            freeform=item.kind == "custom_tool_call",
            extra=own_extra(own),
        )

    def _add_arguments(self, item: UpstreamOutputItem, text: Any) -> None:
        if type(text) is str and text and not item.over:
            item.fragments.append(text)
            self._parts.call(item.number, arguments=text, freeform=item.kind == "custom_tool_call")

    def _note_usage(self, response: Any) -> None:
        if now := usage_of(response):
            self.usage = now.following(self.usage)

    def _finish(self, response: dict[str, Any]) -> None:
        self._parts.start(response.get("id") or None, response.get("model") or None)
        output = response.get("output")
        no_items = not self._items.items  # the stream sent nothing before its last event
        for index, value in enumerate(output if type(output) is list else ()):
            known = None if no_items else self._items.unfinished(value)
            if no_items or known is not None:
                self._item_done({"output_index": known.index if known else index, "item": value})
        self.done = True
        self._note_usage(response)
        reason = read_reason(response)
        # Some upstreams call a response complete that was cut off inside a call.
        open_calls = [item for item in self._items.items if item.kind == "function_call" and not item.over]
        if reason == "stop" and (
            self._cut or any(not is_object(normalize_arguments("".join(call.fragments))) for call in open_calls)
        ):
            reason = "length"
        self._parts.end(reason, self.usage)
