"""The side of Responses that faces a client: its answers, whole and streamed, and its errors.

Reading requests has files of its own (`requests.py`, `items.py`, `tools.py`), the shapes of answers are in `answer.py`.
"""

from typing import Any

from msgspec import Struct

from toolgate.conversation import ids
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import (
    Delta,
    Finish,
    ModelResponse,
    PartEnd,
    PartStart,
    RunEvent,
    StepEnd,
    StepStart,
    Usage,
)
from toolgate.conversation.message import ApprovalRequest, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Encoder, Reply
from toolgate.dialects.dialect import warning_comment as encode_warning
from toolgate.dialects.openai_responses.answer import (
    DONE,
    Teller,
    answered,
    bare,
    completed_at,
    describe,
    error_object,
    namespaces,
    opened,
    write_item,
    write_spoken,
)
from toolgate.dialects.openai_responses.requests import decode_request
from toolgate.dialects.openai_responses.resumed import Told, ToldItem, emptied
from toolgate.dialects.openai_responses.words import NAME, call_item_id, new_item_id, write_reason, write_usage
from toolgate.wire.jsontext import encode

__all__ = ["decode_request", "encode_error", "encode_response", "encode_warning", "encoder", "reply_id"]

_SILENT = (b"", b"")


def reply_id() -> str:
    """A fresh id for an answer."""
    return "resp_" + ids.mint(48)


def encoder(request: ModelRequest, reply: Reply) -> Encoder:
    """An encoder for the answer to this request."""
    return ResponsesEncoder(request, reply)


def encode_response(response: ModelResponse, request: ModelRequest, reply: Reply) -> bytes:
    """A whole answer: what a stream of it would tell in its last event."""
    cause, spaces = write_reason(response.reason), namespaces(request.tools)
    shown = [part for part in response.parts if _is_shown(part)]
    results = {part.call_id: part for part in response.parts if isinstance(part, ToolResult)}
    output: list[dict[str, Any]] = []
    for part in shown:
        status = _status(part, cut=cause is not None and part is shown[-1])
        item = write_item(part, _item_id(part), status, spaces)
        if isinstance(part, ToolCall) and part.executor != "client":
            item = answered(item, results.get(part.id))
        output.append(item)
    ended = "completed" if cause is None else "incomplete"
    return encode(
        {
            **describe(request, reply),
            "status": ended,
            "completed_at": completed_at(reply, ended),
            "error": None,
            "incomplete_details": None if cause is None else {"reason": cause},
            "output": output,
            "usage": write_usage(response.usage or Usage()),
        }
    )


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """The body of an error response."""
    return encode({"error": error_object(error)})


class _Item(Struct):
    """The item that is being told."""

    part: Part
    id: str
    place: bytes  # its id and index as JSON fields, which every event within it repeats
    index: int
    told: bool = False


class ResponsesEncoder:
    """Tells a run as the events of one response."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self._tell = Teller(describe(request, reply))
        self._reply = reply
        self._spaces = namespaces(request.tools)
        self._output: dict[int, bytes] = {}
        self._items = 0
        self._open: _Item | None = None
        self._delta = _SILENT  # what stands around the text of a delta of the open item
        self._ending: _Item | None = None  # told but not closed: how it ended is known only when the step has
        self._running: dict[str, _Item] = {}  # calls that are being run here, by call id
        self._places: dict[str, int] = {}  # of withdrawn items, by id: one that comes again takes its old place
        self._began = False

    def resume(self, told: Told) -> bytes:
        """Go on behind what was told; the frames that withdraw what does not hold any more."""
        self._began = told.count > 0
        self._tell.number = told.count
        self._items = max([item.index + 1 for item in (*told.kept, *told.withdrawn)], default=0)
        for item in told.kept:
            if item.done:
                self._output[item.index] = encode(item.value)
            elif item.id in told.calls:
                self._running[told.calls[item.id].id] = _placed(told.calls[item.id], item)
            elif told.spoken is not None:
                self._ending = _placed(told.spoken, item)
        self._places = {item.id: item.index for item in told.withdrawn}
        return b"".join([self._close_item(_placed(Text(""), item), emptied(item.value)) for item in told.withdrawn])

    def encode(self, event: RunEvent) -> bytes:
        """The frames for this event."""
        match event:
            case Delta(text):
                return self._more(text)
            case PartStart(part):
                return self._begin() + self._close(cut=False) + self._start(part)
            case PartEnd(part):
                return self._end(part)
            case StepStart():
                return self._begin()
            case StepEnd(reason):
                return self._close(cut=write_reason(reason) is not None)
            case Finish():
                return self._begin() + self._finish(event)
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """The error as an event, the response as failed, then the terminator."""
        return self._close(cut=True) + self._tell.failed(error, self._told())

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        return self._tell.started()

    def _more(self, text: str) -> bytes:
        before, after = self._delta
        if not before:
            return b""
        opening = b""
        if self._open is not None and not self._open.told:
            self._open.told = True
            opening = self._before_first_delta(self._open)
        number, self._tell.number = self._tell.number, self._tell.number + 1
        return b"%b%b%b%b%d}\n\n" % (opening, before, encode(text), after, number)

    def _before_first_delta(self, item: _Item) -> bytes:
        """A summary has a part only if there is something in it; its number is taken before the delta's."""
        if not isinstance(item.part, Reasoning):
            return b""
        part = b',"summary_index":0,"part":{"type":"summary_text","text":""}'
        return self._tell.event("response.reasoning_summary_part.added", item.place + part)

    def _start(self, part: Part) -> bytes:
        self._delta = _SILENT
        if not _is_shown(part):
            return b""
        item = self._open = self._new_item(part)
        if item.told:
            return b""  # it was announced before
        match part:
            case Text() | Refusal():
                return self._announce(item) + self._start_spoken(item, part)
            case Reasoning():
                self._delta = self._tell.around(
                    "response.reasoning_summary_text.delta", item.place + b',"summary_index":0'
                )
                return self._announce(item)
            case ToolCall():
                return self._announce(item) + self._start_call(item, part)
            case _:
                return b""

    def _new_item(self, part: Part) -> _Item:
        id, index = _item_id(part), self._items
        if id in self._places:
            return _Item(part, id, bare({"item_id": id, "output_index": self._places[id]}), self._places.pop(id), True)
        self._items += 1
        return _Item(part, id, bare({"item_id": id, "output_index": index}), index)

    def _announce(self, item: _Item) -> bytes:
        value = opened(write_item(item.part, item.id, "in_progress", self._spaces))
        return self._tell.event("response.output_item.added", bare({"output_index": item.index, "item": value}))

    def _start_spoken(self, item: _Item, part: Text | Refusal) -> bytes:
        place = item.place + b',"content_index":0'
        if isinstance(part, Refusal):
            self._delta = self._tell.around("response.refusal.delta", place)
        else:
            self._delta = self._tell.around("response.output_text.delta", place, b',"logprobs":[]')
        empty = write_spoken(Refusal("") if isinstance(part, Refusal) else Text(""))
        return self._tell.event("response.content_part.added", place + b',"part":' + encode(empty))

    def _start_call(self, item: _Item, call: ToolCall) -> bytes:
        self._delta = self._tell.around(f"response.{_argument_words(call)}.delta", item.place)
        if call.executor == "client":
            return b""
        return self._tell.event("response.mcp_call.in_progress", item.place)

    def _end(self, part: Part) -> bytes:
        if isinstance(part, ToolResult):
            return self._end_run(part)
        if not _is_shown(part):
            return b""
        item, self._open = self._open, None
        if item is None:
            raise ValueError("a part ends that never started")
        item.part = part
        untold = b"" if item.told else self._tell_whole(item, part)
        self._delta = _SILENT
        self._ending = item
        if isinstance(part, ToolCall) and part.executor != "client":
            self._running[part.id] = item
            self._ending = None
        return untold + self._end_content(item, part)

    def _tell_whole(self, item: _Item, part: Part) -> bytes:
        """Some clients read deltas alone, so a part that came without any is told in one."""
        if not isinstance(part, (Text, Refusal, Reasoning, ToolCall)):
            return self._announce(item)
        text = part.arguments if isinstance(part, ToolCall) else part.text
        if not text:
            return b""
        self._open = item
        told = self._more(text)
        self._open = None
        return told

    def _end_content(self, item: _Item, part: Part) -> bytes:
        tell = self._tell.event
        match part:
            case Text() | Refusal():
                place, text = item.place + b',"content_index":0', encode(part.text)
                if isinstance(part, Refusal):
                    done = tell("response.refusal.done", b'%b,"refusal":%b' % (place, text))
                else:
                    likely = encode(part.logprobs)
                    done = tell("response.output_text.done", b'%b,"text":%b,"logprobs":%b' % (place, text, likely))
                return done + tell("response.content_part.done", place + b',"part":' + encode(write_spoken(part)))
            case Reasoning() if item.told:
                place, text = item.place + b',"summary_index":0', encode(part.text)
                done = tell("response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text))
                whole = b'"part":{"type":"summary_text","text":%b}' % text
                return done + tell("response.reasoning_summary_part.done", place + b"," + whole)
            case ToolCall(complete=True):
                field = b"input" if part.freeform and part.executor == "client" else b"arguments"
                fields = b'%b,"%b":%b' % (item.place, field, encode(part.arguments))
                return tell(f"response.{_argument_words(part)}.done", fields)
            case _:
                return b""

    def _close(self, cut: bool) -> bytes:
        """Close the item that ended last."""
        item, self._ending = self._ending, None
        if item is None:
            return b""
        return self._close_item(item, write_item(item.part, item.id, _status(item.part, cut), self._spaces))

    def _close_item(self, item: _Item, value: dict[str, Any]) -> bytes:
        written = self._output[item.index] = encode(value)
        return self._tell.event("response.output_item.done", b'"output_index":%d,"item":%b' % (item.index, written))

    def _end_run(self, result: ToolResult) -> bytes:
        item = self._running.pop(result.call_id, None)
        if item is None:
            return b""
        kind = "response.mcp_call.failed" if result.is_error else "response.mcp_call.completed"
        return self._tell.event(kind, item.place) + self._close_run(item, result)

    def _close_run(self, item: _Item, result: ToolResult | None) -> bytes:
        return self._close_item(item, answered(write_item(item.part, item.id, "in_progress", self._spaces), result))

    def _finish(self, finish: Finish) -> bytes:
        cause = write_reason(finish.reason)
        closing = [self._close(cut=cause is not None)]
        closing += [self._close_run(item, None) for item in self._running.values()]
        status = "completed" if cause is None else "incomplete"
        at, details = encode(completed_at(self._reply, status)), encode({"reason": cause} if cause else None)
        changing = b'"status":"%b","completed_at":%b,"error":null,"incomplete_details":%b,"output":[%b],"usage":%b'
        fields = (status.encode(), at, details, self._told(), encode(write_usage(finish.usage)))
        response = b'"response":' + self._tell.response(changing % fields)
        return b"".join(closing) + self._tell.event(f"response.{status}", response) + DONE

    def _told(self) -> bytes:
        return b",".join([self._output[index] for index in sorted(self._output)])


def _placed(part: Part, item: ToldItem) -> _Item:
    """A part in the place where it was begun."""
    return _Item(part, item.id, bare({"item_id": item.id, "output_index": item.index}), item.index, True)


def _is_shown(part: Part) -> bool:
    """Whether a part is an item of its own: a result belongs to its call, and what another dialect keeps stays unsaid."""
    return not isinstance(part, ToolResult) and not (isinstance(part, Opaque) and part.dialect != NAME)


def _status(part: Part, cut: bool) -> str:
    """How an item ended: one that the model was cut off in, or a half call, is incomplete."""
    whole = part.complete if isinstance(part, ToolCall) else not cut
    return "completed" if whole else "incomplete"


def _item_id(part: Part) -> str:
    match part:
        case ToolCall(executor="client"):
            return call_item_id("custom_tool_call" if part.freeform else "function_call", part.id)
        case ToolCall():
            return call_item_id("mcp_call", part.id)
        case ApprovalRequest():
            return part.id
        case Reasoning():
            return new_item_id("reasoning")
        case _:
            return new_item_id("message")


def _argument_words(call: ToolCall) -> str:
    if call.executor != "client":
        return "mcp_call_arguments"
    return "custom_tool_call_input" if call.freeform else "function_call_arguments"
