"""Responses to Responses: events pass as they came, and only what breaks clients is mended.

Mended are the numbering of events and items, ids that change from event to event, the id of the response (ours, for the
client comes back to us with it), missing `response.created`, `output_item.added` and deltas, calls that are named late,
arguments that are not text or quoted twice, characters that are cut in two, and an empty or differing `output` in the last
event. Unknown fields, items and events stay as they are.
"""

from typing import Any

from toolgate.conversation.arguments import as_text, is_object, paired, settled
from toolgate.conversation.errors import Garbled, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.stock import names_of
from toolgate.dialects.dialect import Reply
from toolgate.dialects.openai_responses.answer import DONE, UNFINISHED, Teller, bare, describe, opened
from toolgate.dialects.openai_responses.correlate import CALLS, Correlator, Item, item_of
from toolgate.dialects.openai_responses.stream import (
    TERMINAL,
    UNENDED,
    read_event,
    response_of,
    rest_of_arguments,
    usage_of,
)
from toolgate.dialects.openai_responses.words import read_reason, write_reason, write_usage
from toolgate.wire.frames import Frame
from toolgate.wire.jsontext import encode

_OURS = ("id", "store", "background", "previous_response_id", "conversation")
_EMPTY_TEXT = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
_EMPTY_REFUSAL = {"type": "refusal", "refusal": ""}
_ARGUMENTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


class ResponsesRelay:
    """Passes a Responses stream on."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self.done = False
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None
        self.names = CallNames(names_of(request.tools))
        self._asked = describe(request, reply)
        self._tell = Teller(self._asked)
        self._items = Correlator()
        self._began = False
        self._held: tuple[str, dict[str, Any], dict[str, Any]] | None = None  # the last event for want of usage

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete without usage."""
        return self._held is not None

    def received(self) -> list[Part]:
        """The texts of all items so far."""
        parts: list[Part] = []
        for item in self._items.items:
            text = "".join(item.fragments) or _text(item.value)
            if item.kind in CALLS:
                parts.append(ToolCall("", as_text(item.value.get("name")), text))
            else:
                parts.append(Reasoning(text) if item.kind == "reasoning" else Text(text))
        return parts

    @property
    def calls(self) -> int:
        """How many calls the answer holds so far."""
        return self._items.calls()

    def feed(self, frame: Frame) -> bytes:
        """The event as the client should see it."""
        if self.done:
            return b""
        read = read_event(frame)
        if read is None:
            return b""
        kind, event = read
        if "response" in event:
            self.usage = usage_of(event["response"]) or self.usage
        if kind == "[DONE]":
            return self.end()
        if not kind.isprintable():
            raise Garbled("The upstream sent an event whose name would break the stream.")
        if kind in TERMINAL:
            return self._finish(event)
        if kind == "response.created":
            return b"" if self._began else self._begin(event)
        return self._begin({}) + self._pass(kind, event)

    def end(self) -> bytes:
        """What is left to say."""
        if not self.done:
            raise Garbled("The upstream's stream ended before the answer was complete.")
        return b""

    def error(self, error: ToolgateError) -> bytes:
        """The failure in the numbering of this stream, and the terminator."""
        told = b",".join([encode(item.value) for item in self._items.items if item.over])
        return self._tell.failed(error, told)

    def _begin(self, event: dict[str, Any]) -> bytes:
        if self._began:
            return b""
        self._began = True
        response = event.get("response")
        if type(response) is not dict:
            return self._tell.started()
        return self._write("response.created", {**event, "response": present(response, self._asked)})

    def _pass(self, kind: str, event: dict[str, Any]) -> bytes:
        if kind == "response.output_item.added":
            return self._added(event)
        if kind == "response.output_item.done":
            return self._done(event)
        if self._items.is_within(kind, event):
            return self._within(kind, event)
        if type(event.get("response")) is dict:
            event = {**event, "response": present(event["response"], self._asked)}
        return self._write(kind, event)

    def _write(self, kind: str, event: dict[str, Any]) -> bytes:
        event["type"] = kind
        event["sequence_number"], self._tell.number = self._tell.number, self._tell.number + 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(event))

    def _added(self, event: dict[str, Any]) -> bytes:
        item = self._items.added(event)
        if item.announced:
            return b""
        item.value = self._mended(item_of(event), item)
        if item.kind in CALLS and not item.value.get("name"):
            return b""  # all of it is told when the item is complete
        return self._announce(item, event)

    def _mended(self, value: dict[str, Any], item: Item) -> dict[str, Any]:
        mended = mend_item(value, item)
        if item.kind == "function_call" and type(name := mended.get("name")) is str:
            mended["name"] = self.names.correct(name)
        return mended

    def _announce(self, item: Item, event: dict[str, Any]) -> bytes:
        item.announced = True
        told = {**event, "output_index": item.number, "item": opened(item.value)}
        return self._write("response.output_item.added", told)

    def _within(self, kind: str, event: dict[str, Any]) -> bytes:
        item = self._items.within(kind, event)
        if item is None:
            return self._write(kind, event)
        if item.over:
            return b""
        delta = event.get("delta")
        if type(delta) is str and kind.endswith(".delta"):
            item.fragments.append(delta)
        before = b""
        if not item.announced:
            if item.kind in CALLS:
                return b""  # its name is not known yet
            item.value = mend_item({"type": item.kind}, item)
            before = self._announce(item, {})
        if item.kind == "function_call" and kind.startswith("response.function_call_arguments."):
            return before + self._arguments(kind, event, item)
        event["item_id"], event["output_index"] = item.id, item.number
        if item.kind == "message":
            event.setdefault("content_index", 0)
            if kind.startswith("response.output_text.d"):
                event.setdefault("logprobs", [])
        before += self._content(kind, event, item)
        if type(delta) is str and kind.endswith(".delta"):
            item.last_delta = kind, event
            event["delta"] = item.pairs.feed(delta)
            return before + self._write(kind, event) if event["delta"] else before
        if kind.endswith(".done"):
            before += self._rest_of_text(item)
        return before + self._write(kind, event)

    def _rest_of_text(self, item: Item) -> bytes:
        """Half a character that nothing completed."""
        rest = item.pairs.end()
        if not rest or item.last_delta is None:
            return b""
        kind, event = item.last_delta
        return self._write(kind, {**event, "delta": rest})

    def _arguments(self, kind: str, event: dict[str, Any], item: Item) -> bytes:
        """Arguments as far as they are certain; they are done here once they are whole, else with their item."""
        event["item_id"], event["output_index"] = item.id, item.number
        if kind.endswith(".delta"):
            event["delta"] = item.arguments.feed(as_text(event.get("delta")))
            return self._write(kind, event) if event["delta"] else b""
        rest = rest_of_arguments(item, event)
        item.fragments.append(rest)
        told = item.arguments.feed(rest)
        whole = settled("".join(item.arguments.pieces) or "?")
        if 0 in item.told or not is_object(whole):
            return self._argument_delta(item, told)
        item.told.add(0)
        event["arguments"] = whole
        if type(name := event.get("name")) is str:
            event["name"] = self.names.correct(name)
        return self._argument_delta(item, told + item.arguments.end()) + self._write(kind, event)

    def _argument_delta(self, item: Item, text: str) -> bytes:
        if not text:
            return b""
        return self._tell.event(f"response.{_ARGUMENTS[item.kind][0]}.delta", _place(item, delta=text))

    def _content(self, kind: str, event: dict[str, Any], item: Item) -> bytes:
        """What must be told before this event: the content part it speaks of, the text that no delta told."""
        index = event.get("content_index") or event.get("summary_index") or 0
        if kind == "response.content_part.added":
            item.parts.add(index)
            return b""
        if kind.endswith(".delta"):
            before = self._open_part(item, index, refusal="refusal" in kind) if item.kind == "message" else b""
            item.told.add(index)
            return before
        match kind:
            case "response.custom_tool_call_input.done":
                return self._untold(item, index, as_text(event.get("input")))
            case "response.output_text.done" | "response.refusal.done":
                refusal = kind == "response.refusal.done"
                before = self._open_part(item, index, refusal)
                return before + self._untold(item, index, event.get("refusal" if refusal else "text"), refusal)
            case _:
                return b""

    def _open_part(self, item: Item, index: int, refusal: bool) -> bytes:
        if index in item.parts:
            return b""
        item.parts.add(index)
        part = _EMPTY_REFUSAL if refusal else _EMPTY_TEXT
        return self._tell.event("response.content_part.added", _place(item, content_index=index, part=part))

    def _untold(self, item: Item, index: int, text: Any, refusal: bool = False) -> bytes:
        """The text in one delta, if no delta told any of it: some clients read nothing else."""
        if index in item.told or type(text) is not str or not text:
            return b""
        item.told.add(index)
        match item.kind:
            case "message" if refusal:
                return self._tell.event("response.refusal.delta", _place(item, content_index=index, delta=text))
            case "message":
                fields = _place(item, content_index=index, delta=text, logprobs=[])
                return self._tell.event("response.output_text.delta", fields)
            case _:
                item.fragments.append(text)
                return self._tell.event(f"response.{_ARGUMENTS[item.kind][0]}.delta", _place(item, delta=text))

    def _done(self, event: dict[str, Any]) -> bytes:
        item = self._items.done(event)
        if item.over:
            return b""
        value, before = item_of(event), b""
        if item.kind in CALLS and not (value.get("name") or item.value.get("name")):
            raise Garbled("The upstream sent a tool call without a name.")
        untold = ""
        if item.kind == "function_call":
            untold = self._take_arguments(item, value)
        item.value = self._mended(value, item)
        if not item.announced:
            before = self._announce(item, {})
        before += self._argument_delta(item, untold)
        before += self._rest_of_text(item)
        if item.kind == "message":
            before += self._catch_up(item)
        elif item.kind == "function_call":
            before += self._end_arguments(item)
        elif item.kind in CALLS:
            before += self._catch_up_input(item)
        item.over = True
        return before + self._write(
            "response.output_item.done", {**event, "output_index": item.number, "item": item.value}
        )

    def _take_arguments(self, item: Item, value: dict[str, Any]) -> str:
        """Take in all that is known of the arguments of a call that is complete; what is certain and untold of them."""
        unread = [] if item.announced else item.fragments
        told = "".join([item.arguments.feed(fragment) for fragment in unread])
        rest = rest_of_arguments(item, value)
        item.fragments.append(rest)
        return told + item.arguments.feed(rest)

    def _catch_up(self, item: Item) -> bytes:
        """The content of a message that no event told before the message was complete."""
        told = b""
        for index, part in enumerate(item.value["content"]):
            if index in item.told or type(part) is not dict:
                continue
            refusal = part.get("type") == "refusal"
            field, kind = ("refusal", "response.refusal.done") if refusal else ("text", "response.output_text.done")
            text = part.get(field) or ""
            told += self._open_part(item, index, refusal) + self._untold(item, index, text, refusal)
            logprobs: dict[str, Any] = {} if refusal else {"logprobs": []}
            told += self._tell.event(kind, _place(item, content_index=index, **{field: text}, **logprobs))
            told += self._tell.event("response.content_part.done", _place(item, content_index=index, part=part))
        return told

    def _end_arguments(self, item: Item) -> bytes:
        """What is left of the arguments of a call, now that it is complete."""
        cut = item.value.get("status") == "incomplete"
        told = self._argument_delta(item, item.arguments.end(cut)) if 0 not in item.told else b""
        if cut or 0 in item.told:
            return told
        done = _place(item, arguments=item.value["arguments"])
        return told + self._tell.event("response.function_call_arguments.done", done)

    def _catch_up_input(self, item: Item) -> bytes:
        """The input of a freeform call that no delta told before the call was complete."""
        rest = rest_of_arguments(item, item.value)
        if not rest:
            return b""
        told = self._argument_delta(item, rest)
        if item.value.get("status") == "incomplete":
            return told
        return told + self._tell.event("response.custom_tool_call_input.done", _place(item, input=item.value["input"]))

    def _finish(self, event: dict[str, Any]) -> bytes:
        response = response_of(event)
        told = self._begin({}) + self._complete(response)
        self.reason = read_reason(response)
        cause = write_reason(self.reason)
        if self.reason == "stop" and self.calls:
            self.reason = "tool_calls"
        kind = "completed" if cause is None else "incomplete"
        output = self._output(response.get("output"))
        details = {"incomplete_details": response.get("incomplete_details") or {"reason": cause} if cause else None}
        last = {**present(response, self._asked), "status": kind, **details, "output": output}
        self.done = True
        if self.usage is None:
            self._held = kind, event, last
            return told
        last["usage"] = {**write_usage(self.usage), **(response.get("usage") or {})}
        return told + self._write(f"response.{kind}", {**event, "response": last}) + DONE

    def end_with(self, usage: Usage) -> bytes:
        """The last event, with this usage, and the terminator."""
        assert self._held is not None  # nobody asks otherwise
        (kind, event, last), self.usage, self._held = self._held, usage, None
        last = {**last, "usage": write_usage(usage)}
        return self._write(f"response.{kind}", {**event, "response": last}) + DONE

    def _complete(self, response: dict[str, Any]) -> bytes:
        """Tell of the items that only the last event tells of, and end those that nothing else ended."""
        told, output, untold = b"", response.get("output"), not self._items.items
        for index, value in enumerate(output if type(output) is list else ()):
            known = None if untold else self._items.unfinished(value)
            if untold or known is not None:
                told += self._done({"output_index": known.index if known else index, "item": value})
        for item in self._items.items:
            if not item.over:
                told += self._done({"output_index": item.index, "item": _as_told(item, response)})
        return told

    def _output(self, given: Any) -> list[dict[str, Any]]:
        """The items as they were told, with whatever the last event alone says of them."""
        values = [item.value for item in self._items.items if item.over]
        if type(given) is not list or [_type(value) for value in given] != [value["type"] for value in values]:
            return values
        identity = ("id", "call_id", "name", "content", "arguments", "input", "status")
        return [
            {**last, **{name: told[name] for name in identity if name in told}}
            for told, last in zip(values, given, strict=True)
        ]


def present(response: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A Response as the client should see it: the upstream's word, every required field present, our own id."""
    said = {name: value for name, value in response.items() if value is not None or name not in asked}
    return {**asked, **UNFINISHED, **said, **{name: asked[name] for name in _OURS if name in asked}}


def mend_item(value: dict[str, Any], item: Item) -> dict[str, Any]:
    """An item with one id from beginning to end and the fields that clients rely on."""
    mended = {**value, "id": item.id}
    match item.kind:
        case "message":
            content = value.get("content")
            mended |= {"role": "assistant", "status": value.get("status") or "completed"}
            mended["content"] = [_mend_part(part) for part in content] if type(content) is list else []
        case "reasoning":
            mended["summary"] = value.get("summary") or []
        case "function_call":
            given = "".join(item.fragments) or as_text(value.get("arguments"))
            whole = settled(given)
            cut = value.get("status") in UNENDED and not (given and is_object(whole))
            status = "incomplete" if cut else "completed"
            mended |= {"call_id": item.call_id, "status": status, "arguments": paired(given) if cut else whole}
        case "custom_tool_call":
            mended["call_id"] = item.call_id
            mended["input"] = as_text(value.get("input")) or "".join(item.fragments)
    return mended


def mend_response(body: dict[str, Any], response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """A whole answer as it came, with its items mended."""
    items, output = Correlator(), []
    for index, value in enumerate(body["output"]):
        item = items.done({"output_index": index, "item": value})
        item.over = True
        output.append(mend_item(value, item))
    usage = {**write_usage(response.usage or Usage()), **(body.get("usage") or {})}
    status = body.get("status") or "completed"
    return {**present(body, describe(request, reply)), "status": status, "output": output, "usage": usage}


def _mend_part(part: Any) -> Any:
    if type(part) is dict and part.get("type") == "output_text":
        return {"annotations": [], **part}
    return part


def _as_told(item: Item, response: dict[str, Any]) -> dict[str, Any]:
    """An item that was never completed, as far as its deltas told it."""
    text, status = "".join(item.fragments), "completed" if read_reason(response) == "stop" else "incomplete"
    value = {**item.value, "type": item.kind, "status": status}
    if item.kind in CALLS:
        value[_ARGUMENTS[item.kind][1]] = text
    if item.kind == "message" and text:
        value["content"] = [{**_EMPTY_TEXT, "text": text}]
    if item.kind == "reasoning" and text:
        value["summary"] = [{"type": "summary_text", "text": text}]
    return value


def _text(value: dict[str, Any]) -> str:
    """The text of an item that came without deltas."""
    pieces = [*(value.get("content") or ()), *(value.get("summary") or ())]
    said = [piece.get("text") or piece.get("refusal") for piece in pieces if type(piece) is dict]
    return "".join(map(as_text, [*said, value.get("arguments"), value.get("input")]))


def _type(value: Any) -> Any:
    return value.get("type") if type(value) is dict else None


def _place(item: Item, **fields: Any) -> bytes:
    return bare({"item_id": item.id, "output_index": item.number, **fields})
