"""Encode answers and errors for clients of Ollama's `/api/chat`, whole and streamed.

Requests are decoded in `requests.py`. Calls are sent complete, as Ollama does. Signatures of other dialects are left out:
there is no field in which a client would send them back.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    ToolProgress,
    Usage,
)
from toolgate.conversation.message import Media, Reasoning, RefusalPart, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, StreamEncoder, tool_event, tool_events
from toolgate.dialects.ollama.requests import decode_request
from toolgate.dialects.ollama.shared_codec import (
    NAME,
    encode_line,
    write_call,
    write_date,
    write_measures,
    write_reason,
)

__all__ = [
    "decode_request",
    "encode_error",
    "encode_load",
    "encode_response",
    "encode_warning",
    "encoder",
    "is_load_request",
    "reply_id",
]

# Makes the fields of a line of one endpoint, from `content` and, by name, `thinking` and `tool_calls`.
LineFields: TypeAlias = Callable[..., dict[str, Any]]


def reply_id(request_id: str) -> str:
    """Return the id of the answer to this request; Ollama's clients do not see it."""
    return "ollama-" + request_id


def line_fields(content: str = "", **more: Any) -> dict[str, Any]:
    """Return the fields of a line of `/api/chat`."""
    return {"message": {"role": "assistant", "content": content, **more}}


def encoder(request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
    """Return an encoder for the streamed answer to this request."""
    return OllamaStreamEncoder(request, metadata, line_fields)


def encode_response(response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
    """Encode a whole answer."""
    return write_response(response, request, metadata, line_fields)


def encode_stream_error(error: ToolgateError) -> bytes:
    """Encode an error in the middle of a stream."""
    return encode_error(error) + b"\n"


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """Encode the body of an error response."""
    return encode_line({"error": error.message})  # the API has a text alone, without a code


def encode_warning(warning: str, metadata: AnswerMetadata) -> bytes:
    """Encode a warning in the middle of a stream, as a line without content."""
    return warning_line(warning, metadata, line_fields)


def is_load_request(body: Any) -> bool:
    """Return whether the body only asks to load or unload the model."""
    return type(body) is dict and body.get("messages") in (None, [])


def encode_load(body: Any, metadata: AnswerMetadata) -> bytes:
    """Encode the answer to a load request; no model is asked for it."""
    return write_load(body, metadata, line_fields)


class OllamaStreamEncoder:
    """Encodes the events of a run as lines of JSON; the constant bytes of a line are encoded once."""

    def __init__(self, request: ModelRequest, metadata: AnswerMetadata, fields: LineFields) -> None:
        self._shows_thinking = shows_thinking(request)
        self._head = encode_line(_head(metadata))[:-1] + b","
        self._fields = fields
        self._tool_events = metadata.tool_events
        self._times = metadata.times
        self._calls = 0
        self._open_delta = (b"", b"")  # the bytes around the text of a delta of the open part

    def encode(self, event: RunEvent) -> bytes:
        """Encode the lines of this event."""
        match event:
            case PartDelta(text):
                before, after = self._open_delta
                return before + encode_line(text) + after if before else b""
            case PartStart(part):
                self._open_delta = (b"", b"")  # a call is sent when it is complete, so that its deltas are left out
                if isinstance(part, (Text, RefusalPart)):
                    self._open_delta = self._around(self._fields("?"))
                elif isinstance(part, Reasoning) and self._shows_thinking:
                    self._open_delta = self._around(self._fields(thinking="?"))
                return self._line(self._fields(_link(part))) if isinstance(part, Media) else b""
            case PartEnd() | ToolProgress() if self._tool_events and (value := tool_event(event)):
                return self._line({**self._fields(), "toolgate": value})
            case PartEnd(ToolCall() as call) if is_client_call(call):
                self._calls += 1
                return self._line(self._fields(tool_calls=[write_call(call, call.id, self._calls - 1)]))
            case PartEnd(Text(logprobs=logprobs)) if logprobs:  # one line for all of the text, which costs less
                return self._line({**self._fields(), "logprobs": logprobs})
            case RunEnd():
                return self._line(self._fields(), last_fields(event, self._times()))
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as the last line."""
        return encode_stream_error(error)

    def _line(self, fields: dict[str, Any], end: dict[str, Any] | None = None) -> bytes:
        return self._head + encode_line({**fields, "done": False, **(end or {})})[1:] + b"\n"

    def _around(self, fields: dict[str, Any]) -> tuple[bytes, bytes]:
        # From the right, because the name of the model before it may be "?", too.
        before, after = self._line(fields).rsplit(b'"?"', 1)
        return before, after


def shows_thinking(request: ModelRequest) -> bool:
    """Return whether reasoning is sent: a client that sends `think: false` must not get any."""
    return request.settings.thinking is None or request.settings.thinking.enabled


def write_response(
    response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata, fields: LineFields
) -> bytes:
    """Encode a whole answer with the fields of its endpoint."""
    parts, texts = response.parts, []
    for part in parts:
        match part:
            case Text(text) | RefusalPart(text):
                texts.append(text)
            case Media():
                texts.append(_link(part))
    thinking = "".join([part.text for part in parts if type(part) is Reasoning])
    calls = [part for part in parts if type(part) is ToolCall and is_client_call(part)]
    more: dict[str, Any] = {}
    if thinking and shows_thinking(request):
        more["thinking"] = thinking
    if calls:
        more["tool_calls"] = [write_call(call, call.id, number) for number, call in enumerate(calls)]
    end = last_fields(response, metadata.times())
    if logprobs := [entry for part in parts if type(part) is Text for entry in part.logprobs]:
        end["logprobs"] = logprobs
    return encode_line({**_head(metadata), **fields("".join(texts), **more), **tool_events(response, metadata), **end})


def warning_line(warning: str, metadata: AnswerMetadata, fields: LineFields) -> bytes:
    """Encode a line with a warning in a field of our own."""
    value = {"type": "warning", "message": warning}
    return encode_line({**_head(metadata), **fields(), "done": False, "toolgate": value}) + b"\n"


def write_load(body: Any, metadata: AnswerMetadata, fields: LineFields) -> bytes:
    """Encode the answer to a load request with the fields of its endpoint."""
    # A client unloads a model by keeping it for no time.
    reason = "unload" if body.get("keep_alive") in (0, "0", "0s", "0m") else "load"
    return encode_line({**_head(metadata), **fields(), "done_reason": reason, "done": True})


def is_client_call(call: ToolCall) -> bool:
    """Return whether a call is the client's to run; an incomplete one cannot be marked as such here, so it is left out."""
    return call.complete and call.executor == "client"


def last_fields(end: RunEnd | ModelResponse, times: tuple[float, float]) -> dict[str, Any]:
    """Return the fields of a last line beside the message; those of an Ollama upstream are passed on."""
    measures = write_measures(end.usage or Usage(), times)
    return {"done": True, "done_reason": write_reason(end.reason), **measures, **end.extra.get(NAME, {})}


def _head(metadata: AnswerMetadata) -> dict[str, Any]:
    return {"model": metadata.model, "created_at": write_date(metadata.created)}


def _link(part: Media) -> str:
    """Return a picture as Markdown: the official client fails on an answer with `images`."""
    return f"![{part.kind}]({part.url or f'data:{part.mime};base64,{part.data}'})"
