"""Relay Responses streams and whole answers to Responses clients, repairing only what breaks clients.

Repaired are the numbers of events and items, ids that change from event to event, the id of the response (it becomes
ours, because the client continues it here), missing `response.created`, `output_item.added` and deltas, calls that are
named late, arguments that are not text or quoted twice, characters that are cut in two, and an empty or differing `output`
in the last event. Unknown fields, items and events stay unchanged.
"""

from typing import Any

from toolgate.conversation.arguments import arguments_text, is_object, normalize_arguments
from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.surrogates import repair_json_surrogates
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.dialects.dialect import AnswerMetadata, relayed_usage
from toolgate.dialects.openai_responses.item_correlator import CALLS, ItemCorrelator, UpstreamOutputItem, item_of
from toolgate.dialects.openai_responses.response_object import (
    DONE,
    UNFINISHED,
    ResponseEventWriter,
    describe,
    encode_members,
    opening_item,
)
from toolgate.dialects.openai_responses.shared_codec import read_reason, write_reason, write_usage
from toolgate.dialects.openai_responses.stream_decoder import (
    TERMINAL,
    is_cut,
    read_event,
    response_of,
    rest_of_arguments,
    usage_of,
)
from toolgate.wire.jsontext import encode
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

# Responses are stored here under our id; these fields of the upstream are about its own storage.
_OUR_FIELDS = ("id", "store", "background", "previous_response_id", "conversation")
_EMPTY_TEXT = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
_EMPTY_REFUSAL = {"type": "refusal", "refusal": ""}
_ARGUMENT_EVENTS = {  # the name of the event and the field of the item that hold the arguments of a call
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


class ResponsesStreamRelay:
    """Relays a Responses stream."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self.done = False
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.names = CallNameCorrector(tool_names(request.tools))
        self._response = describe(request, metadata)
        self._writer = ResponseEventWriter(self._response)
        self._items = ItemCorrelator()
        self._began = False
        self._held: tuple[str, dict[str, Any], dict[str, Any]] | None = None  # the last event, which lacks usage

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete and the upstream did not report both counts."""
        return self._held is not None

    def received(self) -> list[Part]:
        """Return the texts of all items so far."""
        parts: list[Part] = []
        for item in self._items.items:
            text, value = "".join(item.fragments), item.value
            if not text:  # the item came without deltas
                lists = [one for name in ("content", "summary") if type(one := value.get(name)) is list]
                inner = [part for one in lists for part in one if type(part) is dict]
                texts = [part.get("text") or part.get("refusal") for part in inner]
                text = "".join(map(arguments_text, [*texts, value.get("arguments"), value.get("input")]))
            if item.kind in CALLS:
                parts.append(ToolCall("", arguments_text(item.value.get("name")), text))
            else:
                parts.append(Reasoning(text) if item.kind == "reasoning" else Text(text))
        return parts

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._items.calls()

    def feed(self, frame: ReceivedStreamFrame) -> bytes:
        """Return the event as the client should receive it."""
        if self.done:
            return b""
        read = read_event(frame)
        if read is None:
            return b""
        kind, event = read
        # Before anything may fail: a response that failed is charged as well.
        if now := usage_of(event.get("response")):
            self.usage = now.following(self.usage)
        if kind == "[DONE]":
            return self.end()
        # The name is written into a line of the stream, which a line break in it would end.
        if not kind.isprintable():
            raise InvalidUpstreamAnswer("The upstream sent an event whose name would break the stream.")
        if kind in TERMINAL:
            return self._finish(event)
        if kind == "response.created":
            return b"" if self._began else self._begin(event)
        opening = self._begin({})
        if kind == "response.output_item.added":
            item = self._items.added(event)
            if item.announced:
                return opening
            item.value = self._repair(item_of(event), item)
            # A call without a name is sent when it is complete.
            is_nameless = item.kind in CALLS and not item.value.get("name")
            return opening if is_nameless else opening + self._announce(item, event)
        if kind == "response.output_item.done":
            return opening + self._done(event)
        if self._items.is_within(kind, event):
            return opening + self._within(kind, event)
        if type(event.get("response")) is dict:
            event = {**event, "response": repair_fields(event["response"], self._response)}
        return opening + self._write(kind, event)

    def end(self) -> bytes:
        """Return nothing, or raise InvalidUpstreamAnswer if the stream was cut short."""
        if not self.done:
            raise InvalidUpstreamAnswer("The upstream's stream ended before the answer was complete.")
        return b""

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error with the next numbers of this stream, and the terminator."""
        output = b",".join([encode(item.value) for item in self._items.items if item.over])
        return self._writer.failed(error, output)

    def _begin(self, event: dict[str, Any]) -> bytes:
        if self._began:
            return b""
        self._began = True
        response = event.get("response")
        if type(response) is not dict:
            return self._writer.started()
        return self._write("response.created", {**event, "response": repair_fields(response, self._response)})

    def _write(self, kind: str, event: dict[str, Any]) -> bytes:
        event["type"] = kind
        # Numbered anew: events are added and left out here, and clients resume a stream by these numbers.
        event["sequence_number"], self._writer.number = self._writer.number, self._writer.number + 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(event))

    def _repair(self, value: dict[str, Any], item: UpstreamOutputItem) -> dict[str, Any]:
        repaired = repair_item(value, item)
        if item.kind == "function_call" and type(name := repaired.get("name")) is str:
            repaired["name"] = self.names.correct(name)
        return repaired

    def _announce(self, item: UpstreamOutputItem, event: dict[str, Any]) -> bytes:
        item.announced = True
        added = {**event, "output_index": item.number, "item": opening_item(item.value)}
        return self._write("response.output_item.added", added)

    def _within(self, kind: str, event: dict[str, Any]) -> bytes:
        item = self._items.within(kind, event)
        if item is None:
            return self._write(kind, event)
        if item.over:  # some upstreams send the events of an item once more behind its end
            return b""
        delta = event.get("delta")
        if type(delta) is str and kind.endswith(".delta"):
            item.fragments.append(delta)
        before = b""
        if not item.announced:
            if item.kind in CALLS:
                return b""  # its name is not known yet
            item.value = repair_item({"type": item.kind}, item)
            before = self._announce(item, {})
        if item.kind == "function_call" and kind.startswith("response.function_call_arguments."):
            return before + self._arguments(kind, event, item)
        event["item_id"], event["output_index"] = item.id, item.number
        # SDKs look up the part by its index and read `logprobs` of every text, so that both must be there.
        if item.kind == "message":
            event.setdefault("content_index", 0)
            if kind.startswith("response.output_text.d"):
                event.setdefault("logprobs", [])
        before += self._missing_events(kind, event, item)
        if type(delta) is str and kind.endswith(".delta"):
            item.last_delta = kind, event
            # Empty if it was half a character, which waits for its other half.
            event["delta"] = item.surrogates.feed(delta)
            return before + self._write(kind, event) if event["delta"] else before
        if kind.endswith(".done"):
            before += self._rest_of_text(item)
        return before + self._write(kind, event)

    def _rest_of_text(self, item: UpstreamOutputItem) -> bytes:
        """Encode a delta for a lone surrogate that nothing completed."""
        rest = item.surrogates.end()
        if not rest or item.last_delta is None:
            return b""
        kind, event = item.last_delta
        return self._write(kind, {**event, "delta": rest})

    def _arguments(self, kind: str, event: dict[str, Any], item: UpstreamOutputItem) -> bytes:
        """Relay arguments as far as they are certain; they end here if they are complete, else with their item."""
        event["item_id"], event["output_index"] = item.id, item.number
        if kind.endswith(".delta"):
            event["delta"] = item.arguments.feed(arguments_text(event.get("delta")))
            return self._write(kind, event) if event["delta"] else b""
        # The final arguments may have more than the deltas, or be the only ones.
        rest = rest_of_arguments(item, event)
        item.fragments.append(rest)
        certain = item.arguments.feed(rest)
        whole = normalize_arguments("".join(item.arguments.fragments) or "?")
        if 0 in item.with_text or not is_object(whole):
            return self._argument_delta(item, certain)
        item.with_text.add(0)
        event["arguments"] = whole
        if type(name := event.get("name")) is str:
            event["name"] = self.names.correct(name)
        return self._argument_delta(item, certain + item.arguments.end()) + self._write(kind, event)

    def _argument_delta(self, item: UpstreamOutputItem, text: str) -> bytes:
        if not text:
            return b""
        return self._writer.event(f"response.{_ARGUMENT_EVENTS[item.kind][0]}.delta", _members(item, delta=text))

    def _missing_events(self, kind: str, event: dict[str, Any], item: UpstreamOutputItem) -> bytes:
        """Encode what the upstream left out before this event: the start of its content part, the delta of its text."""
        index = event.get("content_index") or event.get("summary_index") or 0
        if kind == "response.content_part.added":
            item.announced_parts.add(index)
            return b""
        if kind.endswith(".delta"):
            before = self._open_part(item, index, refusal="refusal" in kind) if item.kind == "message" else b""
            item.with_text.add(index)
            return before
        match kind:
            case "response.custom_tool_call_input.done":
                return self._missing_delta(item, index, arguments_text(event.get("input")))
            case "response.output_text.done" | "response.refusal.done":
                refusal = kind == "response.refusal.done"
                before = self._open_part(item, index, refusal)
                return before + self._missing_delta(item, index, event.get("refusal" if refusal else "text"), refusal)
            case _:
                return b""

    def _open_part(self, item: UpstreamOutputItem, index: int, refusal: bool) -> bytes:
        if index in item.announced_parts:
            return b""
        item.announced_parts.add(index)
        part = _EMPTY_REFUSAL if refusal else _EMPTY_TEXT
        return self._writer.event("response.content_part.added", _members(item, content_index=index, part=part))

    def _missing_delta(self, item: UpstreamOutputItem, index: int, text: Any, refusal: bool = False) -> bytes:
        """Encode the text in one delta, if there was none: some clients read nothing else."""
        if index in item.with_text or type(text) is not str or not text:
            return b""
        item.with_text.add(index)
        item.fragments.append(text)
        match item.kind:
            case "message" if refusal:
                return self._writer.event("response.refusal.delta", _members(item, content_index=index, delta=text))
            case "message":
                fields = _members(item, content_index=index, delta=text, logprobs=[])
                return self._writer.event("response.output_text.delta", fields)
            case _:
                return self._argument_delta(item, text)

    def _done(self, event: dict[str, Any]) -> bytes:
        item = self._items.done(event)
        if item.over:
            return b""
        value, before = item_of(event), b""
        # Everything that the upstream left out of its stream comes before this event: clients build the item from events.
        if item.kind in CALLS and not (value.get("name") or item.value.get("name")):
            raise InvalidUpstreamAnswer("The upstream sent a tool call without a name.")
        unsent = ""
        if item.kind == "function_call":
            unread = [] if item.announced else item.fragments  # deltas of a call that had no name yet
            unsent = "".join([item.arguments.feed(fragment) for fragment in unread])
            rest = rest_of_arguments(item, value)
            item.fragments.append(rest)
            unsent += item.arguments.feed(rest)
        item.value = self._repair(value, item)
        if not item.announced:
            before = self._announce(item, {})
        before += self._argument_delta(item, unsent)
        before += self._rest_of_text(item)
        cut = _is_incomplete(item.value)
        if item.kind == "message":
            before += self._end_content(item)
        elif item.kind == "function_call" and 0 not in item.with_text:
            before += self._argument_delta(item, item.arguments.end(cut))
            if not cut:  # the arguments of a call that was cut off never end
                done = _members(item, arguments=item.value["arguments"])
                before += self._writer.event("response.function_call_arguments.done", done)
        elif item.kind == "custom_tool_call" and (rest := rest_of_arguments(item, item.value)):
            before += self._argument_delta(item, rest)
            if not cut:
                done = _members(item, input=item.value["input"])
                before += self._writer.event("response.custom_tool_call_input.done", done)
        item.over = True
        return before + self._write(
            "response.output_item.done", {**event, "output_index": item.number, "item": item.value}
        )

    def _end_content(self, item: UpstreamOutputItem) -> bytes:
        """Encode the events of content parts that the upstream sent only with the complete message."""
        events = b""
        for index, part in enumerate(item.value["content"]):
            if index in item.with_text or type(part) is not dict:
                continue
            refusal = part.get("type") == "refusal"
            field, kind = ("refusal", "response.refusal.done") if refusal else ("text", "response.output_text.done")
            text = part.get(field) or ""
            events += self._open_part(item, index, refusal) + self._missing_delta(item, index, text, refusal)
            logprobs: dict[str, Any] = {} if refusal else {"logprobs": []}
            events += self._writer.event(kind, _members(item, content_index=index, **{field: text}, **logprobs))
            events += self._writer.event("response.content_part.done", _members(item, content_index=index, part=part))
        return events

    def _finish(self, event: dict[str, Any]) -> bytes:
        response = response_of(event)
        events, output, no_items = self._begin({}), response.get("output"), not self._items.items
        # Items that only the last event has, or that nothing else ended.
        for index, value in enumerate(output if type(output) is list else ()):
            known = None if no_items else self._items.unfinished(value)
            if no_items or known is not None:
                events += self._done({"output_index": known.index if known else index, "item": value})
        for item in self._items.items:
            if not item.over:
                events += self._done({"output_index": item.index, "item": _item_from_deltas(item, response)})
        self.reason = read_reason(response)
        # Some upstreams call a response complete that was cut off inside a call.
        if self.reason == "stop" and any(
            item.kind in CALLS and _is_incomplete(item.value) for item in self._items.items
        ):
            self.reason = "length"
        cause = write_reason(self.reason)
        if self.reason == "stop" and self.calls:
            self.reason = "tool_calls"
        kind = "completed" if cause is None else "incomplete"
        details = {"incomplete_details": response.get("incomplete_details") or {"reason": cause} if cause else None}
        sent = self._output(output)
        last = {**repair_fields(response, self._response), "status": kind, **details, "output": sent}
        self.done = True
        if self.usage is None or self.usage.missing:
            self._held = kind, event, last
            return events
        last["usage"] = {**write_usage(self.usage), **(response.get("usage") or {})}
        return events + self._write(f"response.{kind}", {**event, "response": last}) + DONE

    def end_with(self, usage: Usage) -> bytes:
        """Return the last event, with this usage, and the terminator."""
        assert self._held is not None  # called only if `lacks_usage`
        (kind, event, last), self.usage, self._held = self._held, usage, None
        last = {**last, "usage": write_usage(usage)}
        return self._write(f"response.{kind}", {**event, "response": last}) + DONE

    def _output(self, given: Any) -> list[dict[str, Any]]:
        """Return the items as they were sent, with other fields that only the last event has."""
        # Clients store the output of the last event, so its ids and texts must be those of the events before it.
        values = [item.value for item in self._items.items if item.over]
        types = [value.get("type") if type(value) is dict else None for value in given] if type(given) is list else None
        if types != [value["type"] for value in values]:
            return values
        identity = ("id", "call_id", "name", "content", "arguments", "input", "status")
        return [
            {**last, **{name: sent[name] for name in identity if name in sent}}
            for sent, last in zip(values, given, strict=True)
        ]


def repair_fields(response: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the upstream's Response with all required fields and with those that are ours, such as the id."""
    sent = {name: value for name, value in response.items() if value is not None or name not in own}
    return {**own, **UNFINISHED, **sent, **{name: own[name] for name in _OUR_FIELDS if name in own}}


def repair_item(value: dict[str, Any], item: UpstreamOutputItem) -> dict[str, Any]:
    """Return an item with the same id in all events and the fields that clients rely on."""
    repaired = {**value, "id": item.id}
    match item.kind:
        case "message":
            content = value.get("content")
            repaired |= {"role": "assistant", "status": value.get("status") or "completed"}
            repaired["content"] = [
                {"annotations": [], **part} if type(part) is dict and part.get("type") == "output_text" else part
                for part in (content if type(content) is list else ())
            ]
        case "reasoning":
            repaired["summary"] = value.get("summary") or []
        case "function_call":
            given = "".join(item.fragments) or arguments_text(value.get("arguments"))
            whole = normalize_arguments(given)
            cut = is_cut(value, given)
            status = "incomplete" if cut else "completed"
            repaired |= {
                "call_id": item.call_id,
                "status": status,
                "arguments": repair_json_surrogates(given) if cut else whole,
            }
        case "custom_tool_call":
            repaired["call_id"] = item.call_id
            repaired["input"] = arguments_text(value.get("input")) or "".join(item.fragments)
    return repaired


def repair_response(
    body: dict[str, Any], response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
) -> dict[str, Any]:
    """Return a whole answer with its items repaired."""
    items, output = ItemCorrelator(), []
    for index, value in enumerate(body["output"]):
        item = items.done({"output_index": index, "item": value})
        item.over = True
        output.append(repair_item(value, item))
    usage = relayed_usage(write_usage(response.usage or Usage()), body.get("usage") or {}, response.usage)
    repaired = {**repair_fields(body, describe(request, metadata)), "output": output, "usage": usage}
    cause = write_reason(response.reason)
    if cause is None:
        return {**repaired, "status": body.get("status") or "completed"}
    return {
        **repaired,
        "status": "incomplete",
        "incomplete_details": body.get("incomplete_details") or {"reason": cause},
    }


def _item_from_deltas(item: UpstreamOutputItem, response: dict[str, Any]) -> dict[str, Any]:
    """Make the value of an item that the upstream did not complete from its deltas."""
    text, status = "".join(item.fragments), "completed" if read_reason(response) == "stop" else "incomplete"
    value = {**item.value, "type": item.kind, "status": status}
    if item.kind == "function_call" and not is_object(normalize_arguments(text)):
        value["status"] = "incomplete"
    if item.kind in CALLS:
        value[_ARGUMENT_EVENTS[item.kind][1]] = text
    if item.kind == "message" and text:
        value["content"] = [{**_EMPTY_TEXT, "text": text}]
    if item.kind == "reasoning" and text:
        value["summary"] = [{"type": "summary_text", "text": text}]
    return value


def _is_incomplete(value: dict[str, Any]) -> bool:
    return value.get("status") == "incomplete"


def _members(item: UpstreamOutputItem, **fields: Any) -> bytes:
    return encode_members({"item_id": item.id, "output_index": item.number, **fields})
