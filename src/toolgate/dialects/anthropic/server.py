"""Encode answers, errors, token counts and model lists for Messages clients. Requests are decoded in `requests.py`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from toolgate.conversation.arguments import is_object
from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.message import Media, Opaque, Part, Reasoning, RefusalPart, Text, ToolCall, ToolResult
from toolgate.conversation.reasoning_envelope import wrap_signature
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import rough_input_tokens
from toolgate.dialects.anthropic.requests import decode_count_request, decode_request
from toolgate.dialects.anthropic.shared_codec import (
    NAME,
    OWN_SERVER,
    event_bytes,
    write_input,
    write_message,
    write_reason,
    write_usage,
)
from toolgate.dialects.dialect import AnswerMetadata, StreamEncoder
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
_DELTA_FIELDS = ("container", "stop_details", "stop_reason")  # fields of the last event that belong inside its `delta`


def reply_id(request_id: str) -> str:
    """Return the message id of the answer to this request."""
    return "msg_" + request_id


def encoder(request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
    """Return an encoder for the streamed answer to this request."""
    return MessagesStreamEncoder(metadata, request)


class MessagesStreamEncoder:
    """Encodes the events of a run as message events.

    A block of text or thinking is opened by its first delta, because an empty one breaks clients that send it back; a call
    is opened at once. The bytes around the text of a delta are encoded once per block.
    Clients expect arguments to be a JSON object: those of the gateway's calls are sent in one delta, and a client's call
    whose arguments turn out to be no object ends the stream with an error.
    """

    def __init__(self, metadata: AnswerMetadata, request: ModelRequest) -> None:
        self._metadata = metadata
        self._request = request
        self._hides_server_tools = not metadata.shows_server_tools
        self._began = False
        self._refused = False
        self._blocks = 0  # how many were sent
        self._opening = b""  # the start of the open part's block, until it is sent
        self._opened = False
        self._around = (b"", b"")  # the bytes before and after the text of a delta
        self._has_delta = False
        self._invalid_tool: str | None = None  # the tool of a call whose arguments are no object

    def encode(self, event: RunEvent) -> bytes:
        """Encode the message events of this event."""
        match event:
            case PartDelta(text):
                before, after = self._around
                if not before or not text:  # a part that is sent whole at its end, or an empty delta
                    return b""
                self._has_delta = True
                delta = before + encode(text) + after
                return self._open() + delta if self._opening else delta
            case PartStart(part):
                return self._begin(None) + self._start(part)
            case PartEnd(part):
                return self._end(part)
            case StepStart(usage=usage):
                return self._begin(usage)
            case RunEnd():
                return self._begin(None) + self._finish(event)
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as an event; nothing follows it, because that would make the answer look complete."""
        if self._metadata.loses_errors:
            return self._begin(None) + encode_error_as_text(error, self._blocks)
        return encode_stream_error(error, self._metadata.request_id)

    def _begin(self, usage: Usage | None) -> bytes:
        if self._began:
            return b""
        self._began = True
        # Clients read the input tokens here, while most upstreams of other dialects report them at the end. The end of
        # our stream then has the exact number.
        usage = usage or Usage(rough_input_tokens(self._request), estimated=True)
        message = write_message(self._metadata, [], None, None, usage)
        return event_bytes({"type": "message_start", "message": message}) + _PING

    def _start(self, part: Part) -> bytes:
        self._has_delta = self._opened = False
        self._opening, self._around = b"", (b"", b"")
        match part:
            case Text() | RefusalPart():
                self._refused = self._refused or isinstance(part, RefusalPart)
                self._prepare({"type": "text", "text": ""}, "text_delta", "text")
            case Reasoning():
                self._prepare(write_thinking("", ""), "thinking_delta", "thinking")
            case ToolCall() if not (self._hides_server_tools and part.executor == "gateway"):
                self._prepare({**write_call(part), "input": {}}, "input_json_delta", "partial_json")
                # The text of a freeform call is no JSON, and a gateway's call may turn out not to be an object: both are
                # sent at the end, as an object.
                self._around = (b"", b"") if part.freeform or part.executor == "gateway" else self._around
                return self._open()
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
        """Encode the last deltas of the open block and its end; nothing if it was never opened."""
        if not self._opened:
            return b""
        index = self._blocks - 1
        deltas = [self._delta(index, delta) for delta in last]
        return b"".join(deltas) + event_bytes({"type": "content_block_stop", "index": index})

    def _end(self, part: Part) -> bytes:
        match part:
            case Text(text):
                citations = part.extra.get(NAME, {}).get("citations") or ()
                deltas = [{"type": "citations_delta", "citation": citation} for citation in citations]
                return self._missing_delta(text) + self._close(*deltas)
            case RefusalPart(text):
                return self._missing_delta(text) + self._close()
            case Reasoning(text):
                delta = self._missing_delta(text)
                if not self._opened:  # without a text there is only a signature, or redacted thinking
                    return b"".join([self._whole(block) for block in write_part(part)])
                return delta + self._close({"type": "signature_delta", "signature": _signature(part)})
            case ToolCall(executor="gateway") | ToolResult() if self._hides_server_tools:
                return b""
            case ToolCall(arguments=arguments):
                if part.freeform or part.executor == "gateway":
                    whole = encode(write_input(part)).decode()
                    return self._close({"type": "input_json_delta", "partial_json": whole})
                if part.complete and not is_object(arguments):
                    self._invalid_tool = part.name
                return self._missing_delta(arguments) + self._close()
            case _:
                return b"".join([self._whole(block) for block in write_part(part)])

    def _missing_delta(self, text: str) -> bytes:
        """Encode the text of a part that came without deltas."""
        return b"" if self._has_delta else self.encode(PartDelta(text))

    def _whole(self, block: dict[str, Any]) -> bytes:
        """Encode a complete block; fields that clients read from deltas only are sent in one."""
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

    def _finish(self, finish: RunEnd) -> bytes:
        # The SDK parses the arguments of a complete answer, and raises inside the client. An answer that was cut off
        # tells by its stop reason that its last call must not be run.
        if self._invalid_tool is not None and finish.reason in ("stop", "tool_calls"):
            raise invalid_arguments(self._invalid_tool)
        delta = {
            "stop_reason": write_reason(finish.reason, finish.stop_sequence, self._refused),
            "stop_sequence": finish.stop_sequence,
        }
        own = finish.extra.get(NAME, {})
        delta |= {name: own[name] for name in _DELTA_FIELDS if name in own}
        others = {name: value for name, value in own.items() if name not in _DELTA_FIELDS}
        event = {"type": "message_delta", "delta": delta, "usage": write_usage(finish.usage), **others}
        return event_bytes(event) + _STOP


def invalid_arguments(tool: str) -> InvalidUpstreamAnswer:
    """Return the error of a streamed call whose arguments, already sent, are no JSON object."""
    return InvalidUpstreamAnswer(
        f"The model called {tool} with arguments that are not a JSON object.", code="invalid_arguments"
    )


def encode_response(response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
    """Encode a whole answer."""
    refused = any(isinstance(part, RefusalPart) for part in response.parts)
    reason = write_reason(response.reason, response.stop_sequence, refused)
    content: list[dict[str, Any]] = []
    for part in response.parts:
        # The blocks of server tools are in the beta API; the SDK's plain client fails on them.
        server_tool = isinstance(part, ToolResult) or (isinstance(part, ToolCall) and part.executor == "gateway")
        if metadata.shows_server_tools or not server_tool:
            content += write_part(part)
    message = write_message(metadata, content, reason, response.stop_sequence, response.usage or Usage())
    return encode({**message, **response.extra.get(NAME, {})})


def write_part(part: Part) -> list[dict[str, Any]]:
    """Return the block of a part in a whole answer; an empty part has none."""
    match part:
        case Text(text):
            return [{"type": "text", "text": text, **part.extra.get(NAME, {})}] if text else []
        case RefusalPart(text):
            return [{"type": "text", "text": text}] if text else []
        case Reasoning(text, signature):
            if signature is not None and signature.dialect == NAME and "data" in signature.fields:
                return [{"type": "redacted_thinking", "data": signature.fields["data"]}]
            return [write_thinking(text, _signature(part))] if text or signature else []
        case ToolCall():
            return [{**write_call(part), "input": write_input(part)}]
        case ToolResult(call_id, content, is_error):
            texts = [one.text if isinstance(one, Text) else _media_note(one) for one in content]
            blocks = [{"type": "text", "text": text} for text in texts]
            return [{"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": bool(is_error), "content": blocks}]
        case Media():
            return [{"type": "text", "text": _media_note(part)}]
        case Opaque(dialect, value) if dialect == NAME:
            return [dict(value)]
        case _:
            return []


def write_thinking(text: str, signature: str) -> dict[str, Any]:
    """Return a block of thinking."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def _signature(part: Reasoning) -> str:
    """Return Anthropic's own signature, or another dialect's signature in an envelope."""
    if part.signature is None:
        return ""
    if part.signature.dialect == NAME and "signature" in part.signature.fields:
        return str(part.signature.fields["signature"])
    return wrap_signature(part.signature)


def write_call(call: ToolCall) -> dict[str, Any]:
    """Return a call without its input; one that the gateway runs is shown as that of an MCP server."""
    if call.executor == "gateway":
        return {"type": "mcp_tool_use", "id": call.id, "name": call.name, "server_name": OWN_SERVER}
    return {"type": "tool_use", "id": call.id, "name": call.name, **call.extra.get(NAME, {})}


def _media_note(part: Media) -> str:
    """Return a text that stands for media, which answers of this dialect cannot contain."""
    if part.url:
        return f"![{part.name or part.kind}]({part.url})" if part.kind == "image" else f"[{part.kind}: {part.url}]"
    return f"[{part.kind} {part.name or part.mime or 'of unknown type'}: this API cannot carry it in an answer]"


def encode_error_as_text(error: ToolgateError, index: int) -> bytes:
    """Encode an error as the last text of an answer, for a client that does not show error events.

    Blocks before it stay open, so that the client runs no call that is incomplete.
    """
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": f"\n\nThe answer broke off: {error.message}"}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    events: tuple[dict[str, Any], ...] = (
        {"type": "content_block_start", "index": index, "content_block": block},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 0}},
    )
    return b"".join(map(event_bytes, events)) + _STOP


def encode_stream_error(error: ToolgateError, request_id: str) -> bytes:
    """Encode an error in the middle of a stream."""
    return b"event: error\ndata: " + encode_error(error, request_id) + b"\n\n"


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """Encode the body of an error response."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    value: dict[str, Any] = {"type": kind, "message": error.message}
    details = error.details or ({"error_code": error.code, "param": error.param} if error.param else None)
    if details:
        value["details"] = details
    return encode({"type": "error", "error": value, "request_id": request_id or None})


def encode_count(tokens: int) -> bytes:
    """Encode the answer to a token count request."""
    return encode({"input_tokens": tokens})


def write_model(id: str, display_name: str, created: int, window: int | None = None) -> dict[str, Any]:
    """Return an entry of the model list; `window` is the size of the context window in tokens, if it is known."""
    date = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {"type": "model", "id": id, "display_name": display_name, "created_at": date, "lifecycle": "active"}
    return entry if window is None else {**entry, "max_input_tokens": window}


def write_models(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a model list with all models on one page."""
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": list(models), "has_more": False, "first_id": first, "last_id": last}
