"""Encode answers and errors for Chat clients, whole and streamed. Requests are decoded in `requests.py`."""

from typing import Any

from toolgate.conversation.data_urls import data_url
from toolgate.conversation.errors import ToolgateError
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
from toolgate.conversation.message import Media, Part, Reasoning, RefusalPart, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, StreamEncoder, tool_event, tool_events
from toolgate.dialects.dialect import warning_comment as encode_warning
from toolgate.dialects.openai_chat.reasoning_details import ReasoningDetailEncoder
from toolgate.dialects.openai_chat.requests import decode_request, uses_legacy_functions, wants_usage
from toolgate.dialects.openai_chat.shared_codec import NAME, write_reason, write_usage
from toolgate.wire.jsontext import encode

__all__ = ["decode_request", "encode_error", "encode_response", "encode_warning", "encoder", "reply_id"]

_DONE = b"data: [DONE]\n\n"
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def reply_id(request_id: str) -> str:
    """Return the completion id of the answer to this request."""
    return "chatcmpl-" + request_id


def encoder(request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
    """Return an encoder for the streamed answer to this request."""
    return ChatStreamEncoder(metadata, wants_usage(request), uses_legacy_functions(request))


class ChatStreamEncoder:
    """Encodes the events of a run as chat completion chunks; the constant bytes of a chunk are encoded once."""

    def __init__(self, metadata: AnswerMetadata, usage: bool, legacy: bool) -> None:
        head = {
            "id": metadata.id,
            "object": "chat.completion.chunk",
            "created": metadata.created,
            "model": metadata.model,
        }
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._delta = self._head + b'{"index":0,"delta":'
        # A client that requested usage gets null in every chunk but the last, as in the published types.
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"
        self._delta_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._usage = usage
        self._legacy = legacy
        self._tool_events = metadata.tool_events
        self._metadata = metadata
        self._calls = -1  # the index of the last call
        self._details = ReasoningDetailEncoder()
        self._open_delta = (b"", b"")  # the bytes around the text of a delta of the open part
        self._began = False

    def encode(self, event: RunEvent) -> bytes:
        """Encode the chunks of this event."""
        match event:
            case PartDelta(text):
                before, after = self._open_delta
                return before + encode(text) + after if before else b""  # parts that Chat cannot express have none
            case PartStart(part):
                return self._begin() + self._start(part)
            case PartEnd(part):
                return self._end(part) + self._tool_event(event)
            case StepStart():
                return self._begin()
            case RunEnd():
                return self._begin() + self._finish(event)
            case _:
                return self._tool_event(event)

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error as an event, then the terminator."""
        return end_before_error(self._metadata, self._calls >= 0) + encode_stream_error(error)

    def _tool_event(self, event: RunEvent) -> bytes:
        """Encode a tool event in a field of our own, in a chunk without choices, which clients ignore."""
        value = tool_event(event) if self._tool_events else None
        return self._head + b'],"toolgate":' + encode(value) + b"}\n\n" if value else b""

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return self._delta + encode(delta) + self._delta_tail

    def _around(self, delta: bytes) -> tuple[bytes, bytes]:
        # Only the text changes from delta to delta, so that the rest of each chunk is encoded once for a part.
        before, after = delta.split(b'"?"')
        return self._delta + before, after + self._delta_tail

    def _start(self, part: Part) -> bytes:
        match part:
            case Text():
                self._open_delta = self._around(b'{"content":"?"}')
            case Reasoning():
                self._open_delta = self._around(b'{"reasoning_content":"?"}')
            case RefusalPart():
                self._open_delta = self._around(b'{"refusal":"?"}')
            case ToolCall(executor="client") if self._legacy:
                self._calls += 1
                if self._calls > 0:  # `function_call` has room for one call; the others are left out
                    self._open_delta = (b"", b"")
                    return b""
                self._open_delta = self._around(b'{"function_call":{"arguments":"?"}}')
                return self._chunk({"function_call": {"name": part.name, "arguments": ""}})
            case ToolCall(executor="client"):
                self._calls += 1
                index = str(self._calls).encode()
                field = b'"custom":{"input":"?"}' if part.freeform else b'"function":{"arguments":"?"}'
                self._open_delta = self._around(b'{"tool_calls":[{"index":' + index + b"," + field + b"}]}")
                return self._chunk({"tool_calls": [{"index": self._calls, **write_call(part)}]})
            case Media():
                self._open_delta = (b"", b"")
                return self._chunk({"images": [_image(part)]})
            case _:
                self._open_delta = (b"", b"")
        return b""

    def _end(self, part: Part) -> bytes:
        # Positions of citations count from the start of the message: the text that has just ended is not included yet.
        start = self._details.characters
        entry = self._details.encode(part)
        if type(part) is not Text:
            return self._chunk({"reasoning_details": [entry]}) if entry else b""
        annotations = _annotations(part, start)
        if not annotations and not part.logprobs:
            return b""
        delta = {"annotations": annotations} if annotations else {}
        choice = {"index": 0, "delta": delta, **_logprobs((part,)), "finish_reason": None}
        return self._head + encode(choice) + self._tail

    def _finish(self, finish: RunEnd) -> bytes:
        reason = write_reason(finish.reason)
        if self._legacy and reason == "tool_calls":
            reason = "function_call"
        fields = b""
        # What only Chat upstreams send, such as audio or lists of sources, passes through to Chat clients.
        if own := dict(finish.extra.get(NAME, {})):
            fields = self._chunk({"audio": own.pop("audio")}) if "audio" in own else b""
            fields += self._head + b"]," + encode(own)[1:] + b"\n\n" if own else b""
        last = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"' + reason.encode() + b'"}'
        usage = self._head + b'],"usage":' + encode(write_usage(finish.usage)) + b"}\n\n" if self._usage else b""
        return fields + self._head + last + self._tail + usage + _DONE


def encode_response(response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
    """Encode a whole answer."""
    legacy = uses_legacy_functions(request)
    message = write_message(response.parts, legacy)
    own = dict(response.extra.get(NAME, {}))
    if "audio" in own:
        message["audio"] = own.pop("audio")
    reason = write_reason(response.reason)
    if legacy and reason == "tool_calls":
        reason = "function_call"
    body = {
        "id": metadata.id,
        "object": "chat.completion",
        "created": metadata.created,
        "model": metadata.model,
        "choices": [{"index": 0, "message": message, **_logprobs(response.parts), "finish_reason": reason}],
        "usage": write_usage(response.usage or Usage()),
        **own,
        **tool_events(response, metadata),
    }
    return encode(body)


def _annotations(part: Text, start: int) -> list[dict[str, Any]]:
    """Return the citations of web pages in a text that begins at this character of the message."""
    # Citations of both OpenAI APIs are kept in the form of Responses; Chat nests the same fields once more.
    found: list[dict[str, Any]] = []
    kept = part.extra.get("openai_responses", {}).get("annotations") if part.extra else None
    for one in kept if type(kept) is list else ():  # an upstream may send anything
        match one:
            case {"type": "url_citation"}:
                fields = {name: value for name, value in one.items() if name != "type"}
                moved = {
                    name: fields[name] + start for name in ("start_index", "end_index") if type(fields.get(name)) is int
                }
                found.append({"type": "url_citation", "url_citation": {**fields, **moved}})
    return found


def _logprobs(parts: tuple[Part, ...]) -> dict[str, Any]:
    """Return the log probabilities of an answer, if its upstream sent any."""
    entries = [entry for part in parts if type(part) is Text for entry in part.logprobs]
    return {"logprobs": {"content": entries, "refusal": None} if entries else None}


def write_message(parts: tuple[Part, ...], legacy: bool = False) -> dict[str, Any]:
    """Return the assistant's message of these parts; content is null when there is none."""
    text = "".join([part.text for part in parts if type(part) is Text])
    refusal = "".join([part.text for part in parts if type(part) is RefusalPart])
    calls = [write_call(part, part.arguments) for part in parts if type(part) is ToolCall and part.executor == "client"]
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": refusal or None}
    if not (text or refusal or calls):
        message["content"] = ""  # null is for answers that have only calls or a refusal
    reasoning = [part for part in parts if type(part) is Reasoning]
    if thoughts := "".join([part.text for part in reasoning]):
        message["reasoning_content"] = thoughts
    # Signed reasoning must come back with the next request as it is now, or its upstream may reject the history.
    if any(part.signature and part.signature.dialect != NAME for part in reasoning):
        details = ReasoningDetailEncoder()
        message["reasoning_details"] = [entry for part in parts if (entry := details.encode(part))]
    # The positions of a citation count from the start of the message, whose texts are joined.
    characters, annotations = 0, list[dict[str, Any]]()
    for part in parts:
        if type(part) is Text:
            annotations += _annotations(part, characters)
            characters += len(part.text)
    if annotations:
        message["annotations"] = annotations
    images = [_image(part) for part in parts if type(part) is Media]
    if images:
        message["images"] = images
    if calls and legacy:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    return message


def write_call(call: ToolCall, arguments: str = "") -> dict[str, Any]:
    """Return a call as an entry of `tool_calls`."""
    if call.freeform:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments}}
    own = dict(call.extra.get(NAME, {}))
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}, **own}


def _image(part: Media) -> dict[str, Any]:
    url = part.url or data_url(part.mime, part.data or "")
    return {"type": "image_url", "image_url": {"url": url}}


def end_before_error(metadata: AnswerMetadata, has_calls: bool) -> bytes:
    """Encode the end of an answer that an error follows, for a client that reads no error while an answer is open.

    Such a client runs calls that are ended with `stop` or `tool_calls`, and drops those that are ended with `length`.
    """
    if not metadata.loses_errors:
        return b""
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length" if has_calls else "stop"}
    head = {"id": metadata.id, "object": "chat.completion.chunk", "created": metadata.created, "model": metadata.model}
    return b"data: " + encode({**head, "choices": [choice]}) + b"\n\n"


def encode_stream_error(error: ToolgateError) -> bytes:
    """Encode an error in the middle of a stream, and the terminator."""
    return b"data: " + encode_error(error) + b"\n\n" + _DONE


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """Encode the body of an error response."""
    # OpenAI has one type for most faults of the client, and one for all of the server.
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return encode({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}})
