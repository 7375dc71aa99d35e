"""The side of Messages that faces a client: its answers, whole and streamed, its errors and its small bodies.

Reading requests has a file of its own, `requests.py`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.arguments import is_object
from toolgate.conversation.errors import Garbled, ToolgateError
from toolgate.conversation.events import Delta, Finish, ModelResponse, PartEnd, PartStart, RunEvent, StepStart, Usage
from toolgate.conversation.message import Extra, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.seals import enclose
from toolgate.conversation.size import rough_input_tokens
from toolgate.dialects.anthropic.requests import decode_count_request, decode_request
from toolgate.dialects.anthropic.words import (
    NAME,
    OWN_SERVER,
    event_bytes,
    write_input,
    write_message,
    write_reason,
    write_usage,
)
from toolgate.dialects.dialect import Encoder, Reply
from toolgate.dialects.dialect import warning_comment as encode_warning
from toolgate.wire.jsontext import encode

__all__ = [
    "decode_count_request",
    "decode_request",
    "encode_count",
    "encode_error",
    "encode_response",
    "encode_warning",
    "encoder",
    "reply_id",
    "write_model",
    "write_models",
]

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OF_THE_DELTA = ("container", "stop_details", "stop_reason")


def reply_id() -> str:
    """A fresh id for an answer."""
    return "msg_" + ids.mint(24)


def encoder(request: ModelRequest, reply: Reply) -> Encoder:
    """An encoder for the answer to this request."""
    return MessagesEncoder(reply, request)


class MessagesEncoder:
    """Tells a run as message events.

    A block of text or thinking is opened by its first words, for an empty one breaks clients that send it back; a call is
    opened at once. What stands around the text of a delta is written once a block.
    Clients take arguments for a JSON object: those of the gateway's calls are sent whole, and a client's call whose
    arguments turn out to be no object ends the stream with an error.
    """

    def __init__(self, reply: Reply, request: ModelRequest) -> None:
        self._reply = reply
        self._request = request
        self._hides = not reply.shows_server_tools
        self._began = False
        self._refused = False
        self._blocks = 0  # how many the client has heard of
        self._opening = b""  # the start of the open part's block, until it is sent
        self._opened = False
        self._around = (b"", b"")
        self._told = False
        self._unusable: str | None = None  # the tool of a call whose arguments are no object

    def encode(self, event: RunEvent) -> bytes:
        """The events of the dialect for this event."""
        match event:
            case Delta(text):
                before, after = self._around
                if not before or not text:
                    return b""
                self._told = True
                delta = before + encode(text) + after
                return self._open() + delta if self._opening else delta
            case PartStart(part):
                return self._begin(None) + self._start(part)
            case PartEnd(part):
                return self._end(part)
            case StepStart(usage=usage):
                return self._begin(usage)
            case Finish():
                return self._begin(None) + self._finish(event)
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """The error as an event; nothing follows it, for what does would make the answer look complete."""
        return encode_stream_error(error, self._reply.request_id)

    def _begin(self, usage: Usage | None) -> bytes:
        if self._began:
            return b""
        self._began = True
        usage = usage or Usage(rough_input_tokens(self._request), estimated=True)  # the end of the stream has the count
        message = write_message(self._reply, [], None, None, usage)
        return event_bytes({"type": "message_start", "message": message}) + _PING

    def _start(self, part: Part) -> bytes:
        self._told = self._opened = False
        self._opening, self._around = b"", (b"", b"")
        match part:
            case Text() | Refusal():
                self._refused = self._refused or isinstance(part, Refusal)
                self._prepare({"type": "text", "text": ""}, "text_delta", "text")
            case Reasoning():
                self._prepare(write_thinking("", ""), "thinking_delta", "thinking")
            case ToolCall(executor="gateway") if self._hides:
                pass
            case ToolCall():
                self._prepare({**write_call(part), "input": {}}, "input_json_delta", "partial_json")
                self._around = (b"", b"") if part.freeform or part.executor == "gateway" else self._around
                return self._open()
            case _:
                pass
        return b""

    def _prepare(self, block: dict[str, Any], kind: str, field: str) -> None:
        index = self._blocks
        self._opening = event_bytes({"type": "content_block_start", "index": index, "content_block": block})
        before, after = self._delta(index, {"type": kind, field: "?"}).split(b'"?"')
        self._around = (before, after)

    def _open(self) -> bytes:
        opening, self._opening = self._opening, b""
        self._opened = True
        self._blocks += 1
        return opening

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return event_bytes({"type": "content_block_delta", "index": index, "delta": delta})

    def _close(self, *last: dict[str, Any]) -> bytes:
        """The last deltas of the open block and its end; nothing if it was never opened."""
        if not self._opened:
            return b""
        index = self._blocks - 1
        deltas = [self._delta(index, delta) for delta in last]
        return b"".join(deltas) + event_bytes({"type": "content_block_stop", "index": index})

    def _end(self, part: Part) -> bytes:
        match part:
            case Text(text):
                return self._catch_up(text) + self._close(*_citation_deltas(part.extra))
            case Refusal(text):
                return self._catch_up(text) + self._close()
            case Reasoning():
                return self._end_reasoning(part)
            case ToolCall(executor="gateway") | ToolResult() if self._hides:
                return b""
            case ToolCall(arguments=arguments):
                if part.freeform or part.executor == "gateway":
                    whole = encode(write_input(part)).decode()
                    return self._close({"type": "input_json_delta", "partial_json": whole})
                if part.complete and not is_object(arguments):
                    self._unusable = part.name
                return self._catch_up(arguments) + self._close()
            case _:
                return b"".join([self._whole(block) for block in write_part(part)])

    def _catch_up(self, text: str) -> bytes:
        """The text of a part that was told without a delta."""
        return b"" if self._told else self.encode(Delta(text))

    def _end_reasoning(self, part: Reasoning) -> bytes:
        said = self._catch_up(part.text)
        if self._opened:
            return said + self._close({"type": "signature_delta", "signature": _signature(part)})
        return b"".join([self._whole(block) for block in write_part(part)])

    def _whole(self, block: dict[str, Any]) -> bytes:
        """A block that came in one piece; what a client reads from deltas alone is told in one."""
        shown, deltas = dict(block), []
        match block:
            case {"type": str(kind), "input": given} if kind.endswith("tool_use"):
                shown["input"] = {}
                deltas.append({"type": "input_json_delta", "partial_json": encode(given).decode()})
            case {"type": "text", "text": text}:
                shown["text"] = ""
                deltas.append({"type": "text_delta", "text": text})
            case {"type": "thinking", "signature": signature}:
                shown["signature"] = ""
                deltas.append({"type": "signature_delta", "signature": signature})
        start = event_bytes({"type": "content_block_start", "index": self._blocks, "content_block": shown})
        self._blocks += 1
        self._opened = True
        return start + self._close(*deltas)

    def _finish(self, finish: Finish) -> bytes:
        if self._unusable is not None and finish.reason in ("stop", "tool_calls"):
            raise unusable_arguments(self._unusable)
        delta = {
            "stop_reason": write_reason(finish.reason, finish.stop_sequence, self._refused),
            "stop_sequence": finish.stop_sequence,
        }
        own = finish.extra.get(NAME, {})
        delta |= {name: own[name] for name in _OF_THE_DELTA if name in own}
        beside = {name: value for name, value in own.items() if name not in _OF_THE_DELTA}
        event = {"type": "message_delta", "delta": delta, "usage": write_usage(finish.usage), **beside}
        return event_bytes(event) + _STOP


def unusable_arguments(tool: str) -> Garbled:
    """The failure of a streamed call whose arguments, already sent, are no JSON object."""
    return Garbled(f"The model called {tool} with arguments that are not a JSON object.", code="invalid_arguments")


def _citation_deltas(extra: Extra) -> list[dict[str, Any]]:
    citations = extra.get(NAME, {}).get("citations") or ()
    return [{"type": "citations_delta", "citation": citation} for citation in citations]


def encode_response(response: ModelResponse, request: ModelRequest, reply: Reply) -> bytes:
    """A whole answer."""
    refused = any(isinstance(part, Refusal) for part in response.parts)
    reason = write_reason(response.reason, response.stop_sequence, refused)
    parts = response.parts if reply.shows_server_tools else [part for part in response.parts if not _is_ours(part)]
    content = [block for part in parts for block in write_part(part)]
    message = write_message(reply, content, reason, response.stop_sequence, response.usage or Usage())
    return encode({**message, **response.extra.get(NAME, {})})


def _is_ours(part: Part) -> bool:
    """Whether the part is a call that the server ran, or its result."""
    return isinstance(part, ToolResult) or (isinstance(part, ToolCall) and part.executor == "gateway")


def write_part(part: Part) -> list[dict[str, Any]]:
    """The block that a part makes in a whole answer; an empty one makes none."""
    match part:
        case Text(text):
            return [{"type": "text", "text": text, **part.extra.get(NAME, {})}] if text else []
        case Refusal(text):
            return [{"type": "text", "text": text}] if text else []
        case Reasoning():
            return _reasoning(part)
        case ToolCall():
            return [{**write_call(part), "input": write_input(part)}]
        case ToolResult():
            return [_own_result(part)]
        case Media():
            return [{"type": "text", "text": _media_note(part)}]
        case Opaque(dialect, value) if dialect == NAME:
            return [dict(value)]
        case _:
            return []


def _reasoning(part: Reasoning) -> list[dict[str, Any]]:
    seal = part.seal
    if seal is not None and seal.dialect == NAME and "data" in seal.fields:
        return [{"type": "redacted_thinking", "data": seal.fields["data"]}]
    return [write_thinking(part.text, _signature(part))] if part.text or seal else []


def write_thinking(text: str, signature: str) -> dict[str, Any]:
    """A block of thinking."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def _signature(part: Reasoning) -> str:
    """Anthropic's own signature, or another dialect's seal in an envelope that comes back as one."""
    if part.seal is None:
        return ""
    if part.seal.dialect == NAME and "signature" in part.seal.fields:
        return str(part.seal.fields["signature"])
    return enclose(part.seal)


def write_call(call: ToolCall) -> dict[str, Any]:
    """A call without its input; one that the gateway runs itself is shown as that of an MCP server."""
    if call.executor == "gateway":
        return {"type": "mcp_tool_use", "id": call.id, "name": call.name, "server_name": OWN_SERVER}
    return {"type": "tool_use", "id": call.id, "name": call.name, **call.extra.get(NAME, {})}


def _own_result(result: ToolResult) -> dict[str, Any]:
    content = [
        {"type": "text", "text": piece.text if isinstance(piece, Text) else _media_note(piece)}
        for piece in result.content
    ]
    is_error = bool(result.is_error)
    return {"type": "mcp_tool_result", "tool_use_id": result.call_id, "is_error": is_error, "content": content}


def _media_note(part: Media) -> str:
    """Answers of this dialect hold no media, so they are named in words."""
    if part.url:
        return f"![{part.name or part.kind}]({part.url})" if part.kind == "image" else f"[{part.kind}: {part.url}]"
    return f"[{part.kind} {part.name or part.mime or 'of unknown type'}: this API cannot carry it in an answer]"


def encode_stream_error(error: ToolgateError, request_id: str) -> bytes:
    """An error in the middle of a stream."""
    return b"event: error\ndata: " + encode_error(error, request_id) + b"\n\n"


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """The body of an error response."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": error.message}
    details = error.details or ({"error_code": error.code, "param": error.param} if error.param else None)
    if details:
        told["details"] = details
    return encode({"type": "error", "error": told, "request_id": request_id or None})


def encode_count(tokens: int) -> bytes:
    """The answer to a question for the number of tokens."""
    return encode({"input_tokens": tokens})


def write_model(id: str, display_name: str, created: int, window: int | None = None) -> dict[str, Any]:
    """A model as Anthropic's clients list it; `window` is how many tokens it takes, if that is known."""
    date = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    named = {"type": "model", "id": id, "display_name": display_name, "created_at": date, "lifecycle": "active"}
    return named if window is None else {**named, "max_input_tokens": window}


def write_models(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All models on one page."""
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": list(models), "has_more": False, "first_id": first, "last_id": last}
