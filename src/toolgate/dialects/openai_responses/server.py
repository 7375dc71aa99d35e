"""Encode answers and errors for Responses clients, whole and streamed.

Requests are decoded in `requests.py`, `input_items.py` and `tools.py`; `response_object.py` has the forms of answers.
"""

from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    StepEnd,
    StepStart,
    ToolProgress,
    Usage,
)
from toolgate.conversation.message import (
    ApprovalRequestPart,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.random_ids import random_suffix
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, StreamEncoder
from toolgate.dialects.dialect import warning_comment as encode_warning
from toolgate.dialects.openai_responses.items_sent_before_crash import (
    ItemSentBeforeCrash,
    ItemsSentBeforeCrash,
    withdraw_item,
)
from toolgate.dialects.openai_responses.requests import decode_request
from toolgate.dialects.openai_responses.response_object import (
    DONE,
    ResponseEventWriter,
    completed_at,
    describe,
    encode_members,
    error_object,
    namespaces,
    opening_item,
    with_result,
    write_content,
    write_item,
)
from toolgate.dialects.openai_responses.shared_codec import NAME, call_item_id, new_item_id, write_reason, write_usage
from toolgate.wire.jsontext import encode, encode_in_steps

__all__ = ["decode_request", "encode_error", "encode_response", "encode_warning", "encoder", "reply_id"]

_NO_DELTA = (b"", b"")


def reply_id(request_id: str) -> str:
    """Return a new response id; it is random throughout, because responses are found by it."""
    return "resp_" + random_suffix(48)


def encoder(request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
    """Return an encoder for the streamed answer to this request."""
    return ResponsesStreamEncoder(request, metadata)


def encode_response(response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
    """Encode a whole answer: the Response object that the last event of a stream would hold."""
    cause, spaces = write_reason(response.reason), namespaces(request.tools)
    shown = [part for part in response.parts if _is_item(part)]
    results = {part.call_id: part for part in response.parts if isinstance(part, ToolResult)}
    output: list[dict[str, Any]] = []
    for part in shown:
        status = _status(part, cut=cause is not None and part is shown[-1])
        item = write_item(part, _item_id(part), status, spaces)
        if isinstance(part, ToolCall) and part.executor != "client":
            item = with_result(item, results.get(part.id), images=metadata.tool_events)
        output.append(item)
    ended = "completed" if cause is None else "incomplete"
    return encode(
        {
            **describe(request, metadata),
            "status": ended,
            "completed_at": completed_at(metadata, ended),
            "error": None,
            "incomplete_details": None if cause is None else {"reason": cause},
            "output": output,
            "usage": write_usage(response.usage or Usage()),
        }
    )


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """Encode the body of an error response."""
    return encode({"error": error_object(error)})


# Characters; a call of the JSON encoder holds the interpreter until it returns.
_LONG_TEXT = 1024 * 1024


class _Item(Struct):
    """An output item that is being sent."""

    part: Part
    id: str
    place: bytes  # its id and index as JSON fields, which every event within it repeats
    index: int
    sent: bool = False  # a delta of it was sent, or it was announced by an earlier process


class ResponsesStreamEncoder:
    """Encodes the events of a run as the events of one response."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata) -> None:
        self._writer = ResponseEventWriter(describe(request, metadata))
        self._metadata = metadata
        self._spaces = namespaces(request.tools)
        self._output: dict[int, bytes] = {}
        self._items = 0
        self._open: _Item | None = None
        self._delta = _NO_DELTA  # the bytes around the text of a delta of the open item
        self._ending: _Item | None = None  # complete but not closed: its status is known only when the step ends
        self._running: dict[str, _Item] = {}  # calls that are being run here, by call id
        self._withdrawn: dict[str, int] = {}  # indexes of withdrawn items by id: one that comes again takes its index
        self._began = False

    def resume(self, sent: ItemsSentBeforeCrash) -> bytes:
        """Continue behind what was sent, and return the frames that withdraw items which are not stored."""
        self._began = sent.count > 0
        self._writer.number = sent.count  # one event in each frame
        self._items = max([item.index + 1 for item in (*sent.kept, *sent.withdrawn)], default=0)
        for item in sent.kept:
            if item.done:
                self._output[item.index] = encode(item.value)
            elif item.id in sent.calls:
                self._running[sent.calls[item.id].id] = _resumed_item(sent.calls[item.id], item)
            elif sent.last_part is not None:
                self._ending = _resumed_item(sent.last_part, item)
        self._withdrawn = {item.id: item.index for item in sent.withdrawn}
        return b"".join(
            [self._close_item(_resumed_item(Text(""), item), withdraw_item(item.value)) for item in sent.withdrawn]
        )

    def encode(self, event: RunEvent) -> bytes:
        """Encode the frames of this event."""
        match event:
            case PartDelta(text):
                return self._add_delta(text)
            case PartStart(part):
                return self._begin() + self._close(cut=False) + self._start(part)
            case PartEnd(part):
                return self._end(part)
            case StepStart():
                return self._begin()
            case StepEnd(reason):
                return self._close(cut=write_reason(reason) is not None)
            case RunEnd():
                return self._begin() + self._finish(event)
            case ToolProgress(call_id, message, done, total) if self._metadata.tool_events and call_id in self._running:
                # The API has no event for it: that the call is in progress is repeated, with a field of our own. A call
                # that still waits for its approval is not shown.
                progress = encode({"message": message, "done": done, "total": total})
                place = self._running[call_id].place
                return self._writer.event("response.mcp_call.in_progress", place + b',"toolgate":' + progress)
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as an event, the failed response, then the terminator."""
        return self._close(cut=True) + self._writer.failed(error, self._sent_output())

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        return self._writer.started()

    def _add_delta(self, text: str) -> bytes:
        before, after = self._delta
        if not before:
            return b""
        opening = b""
        item = self._open
        if item is not None and not item.sent:
            item.sent = True
            if isinstance(item.part, Reasoning):  # a summary has a part only if there is text in it
                part = b',"summary_index":0,"part":{"type":"summary_text","text":""}'
                opening = self._writer.event("response.reasoning_summary_part.added", item.place + part)
        # The number comes last in a delta, so that all bytes before and after the text are constant.
        number, self._writer.number = self._writer.number, self._writer.number + 1
        return b"%b%b%b%b%d}\n\n" % (opening, before, encode(text), after, number)

    def _start(self, part: Part) -> bytes:
        self._delta = _NO_DELTA
        if not _is_item(part):
            return b""
        id, index = _item_id(part), self._items
        withdrawn = id in self._withdrawn
        if withdrawn:
            index = self._withdrawn.pop(id)
        else:
            self._items += 1
        place = encode_members({"item_id": id, "output_index": index})
        item = self._open = _Item(part, id, place, index, sent=withdrawn)
        if withdrawn:
            return b""  # an earlier process announced it
        match part:
            case Text() | RefusalPart():
                place += b',"content_index":0'
                if isinstance(part, RefusalPart):
                    self._delta = self._writer.around("response.refusal.delta", place)
                else:
                    self._delta = self._writer.around("response.output_text.delta", place, b',"logprobs":[]')
                empty = encode(write_content(RefusalPart("") if isinstance(part, RefusalPart) else Text("")))
                announced = self._announce(item)
                return announced + self._writer.event("response.content_part.added", place + b',"part":' + empty)
            case Reasoning():
                self._delta = self._writer.around(
                    "response.reasoning_summary_text.delta", item.place + b',"summary_index":0'
                )
                return self._announce(item)
            case ToolCall():
                self._delta = self._writer.around(f"response.{_argument_event(part)}.delta", item.place)
                announced = self._announce(item)
                if part.executor == "client":
                    return announced
                return announced + self._writer.event("response.mcp_call.in_progress", item.place)
            case _:
                return b""

    def _announce(self, item: _Item) -> bytes:
        value = opening_item(write_item(item.part, item.id, "in_progress", self._spaces))
        return self._writer.event(
            "response.output_item.added", encode_members({"output_index": item.index, "item": value})
        )

    def _end(self, part: Part) -> bytes:
        if isinstance(part, ToolResult):
            call = self._running.pop(part.call_id, None)
            if call is None:
                return b""
            kind = "response.mcp_call.failed" if part.is_error else "response.mcp_call.completed"
            return self._writer.event(kind, call.place) + self._close_run(call, part)
        if not _is_item(part):
            return b""
        item = self._open
        if item is None:
            raise ValueError("a part ends that never started")
        item.part, unsent = part, b""
        if not item.sent and isinstance(part, (Text, RefusalPart, Reasoning, ToolCall)):
            # Some clients read nothing but deltas, so that a part that came without any is sent in one.
            if text := part.arguments if isinstance(part, ToolCall) else part.text:
                unsent = self._add_delta(text)
        elif not item.sent:
            unsent = self._announce(item)
        self._open, self._delta, self._ending = None, _NO_DELTA, item
        if isinstance(part, ToolCall) and part.executor != "client":
            self._running[part.id] = item
            self._ending = None
        return unsent + self._end_content(item, part)

    def _end_content(self, item: _Item, part: Part) -> bytes:
        event = self._writer.event
        match part:
            case Text() | RefusalPart():
                place, text = item.place + b',"content_index":0', encode_in_steps(part.text)
                if isinstance(part, RefusalPart):
                    done = event("response.refusal.done", b'%b,"refusal":%b' % (place, text))
                else:
                    logprobs = encode(part.logprobs)
                    done = event("response.output_text.done", b'%b,"text":%b,"logprobs":%b' % (place, text, logprobs))
                content = _encode_item(write_content(part), part.text)
                return done + event("response.content_part.done", place + b',"part":' + content)
            case Reasoning() if item.sent:
                place, text = item.place + b',"summary_index":0', encode_in_steps(part.text)
                done = event("response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text))
                whole = b'"part":{"type":"summary_text","text":%b}' % text
                return done + event("response.reasoning_summary_part.done", place + b"," + whole)
            case ToolCall(complete=True):
                field = b"input" if part.freeform and part.executor == "client" else b"arguments"
                fields = b'%b,"%b":%b' % (item.place, field, encode_in_steps(part.arguments))
                return event(f"response.{_argument_event(part)}.done", fields)
            case _:
                return b""

    def _close(self, cut: bool) -> bytes:
        """Close the item that ended last."""
        item, self._ending = self._ending, None
        if item is None:
            return b""
        return self._close_item(item, write_item(item.part, item.id, _status(item.part, cut), self._spaces))

    def _close_item(self, item: _Item, value: dict[str, Any]) -> bytes:
        part = item.part
        text = part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "")
        written = self._output[item.index] = _encode_item(value, text)
        return self._writer.event("response.output_item.done", b'"output_index":%d,"item":%b' % (item.index, written))

    def _close_run(self, item: _Item, result: ToolResult | None) -> bytes:
        value = write_item(item.part, item.id, "in_progress", self._spaces)
        return self._close_item(item, with_result(value, result, images=self._metadata.tool_events))

    def _finish(self, finish: RunEnd) -> bytes:
        cause = write_reason(finish.reason)
        # A call still runs here only if the run was ended early; it is closed as incomplete.
        closing = [self._close(cut=cause is not None)]
        closing += [self._close_run(item, None) for item in self._running.values()]
        status = "completed" if cause is None else "incomplete"
        at, details = encode(completed_at(self._metadata, status)), encode({"reason": cause} if cause else None)
        changing = b'"status":"%b","completed_at":%b,"error":null,"incomplete_details":%b,"output":[%b],"usage":%b'
        fields = (status.encode(), at, details, self._sent_output(), encode(write_usage(finish.usage)))
        response = b'"response":' + self._writer.response(changing % fields)
        return b"".join(closing) + self._writer.event(f"response.{status}", response) + DONE

    def _sent_output(self) -> bytes:
        return b",".join([self._output[index] for index in sorted(self._output)])


def _resumed_item(part: Part, item: ItemSentBeforeCrash) -> _Item:
    return _Item(part, item.id, encode_members({"item_id": item.id, "output_index": item.index}), item.index, True)


def _is_item(part: Part) -> bool:
    """Return whether a part is an output item: a result belongs to its call, and other dialects' parts are left out."""
    return not isinstance(part, ToolResult) and not (isinstance(part, Opaque) and part.dialect != NAME)


def _encode_item(value: dict[str, Any], text: str) -> bytes:
    """Encode an item, or a part of one, which has this text; one with a long text in steps."""
    return encode_in_steps(value) if len(text) > _LONG_TEXT else encode(value)


def _status(part: Part, cut: bool) -> str:
    """Return the status of an ended item: one that the model was cut off in, or an incomplete call, is incomplete."""
    whole = part.complete if isinstance(part, ToolCall) else not cut
    return "completed" if whole else "incomplete"


def _item_id(part: Part) -> str:
    match part:
        case ToolCall(executor="client"):
            return call_item_id("custom_tool_call" if part.freeform else "function_call", part.id)
        case ToolCall():
            return call_item_id("mcp_call", part.id)
        case ApprovalRequestPart():
            return part.id
        case Reasoning():
            return new_item_id("reasoning")
        case _:
            return new_item_id("message")


def _argument_event(call: ToolCall) -> str:
    if call.executor != "client":
        return "mcp_call_arguments"
    return "custom_tool_call_input" if call.freeform else "function_call_arguments"
