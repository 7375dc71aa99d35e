"""Shorthand for the tests of the Messages dialect: events in, answers out, and the official SDK as the judge."""

import json
from typing import Any

import httpx2
from anthropic import Anthropic
from anthropic._streaming import SSEDecoder
from anthropic.lib.streaming._beta_messages import accumulate_event as accumulate_beta
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.dialects.relays import end_of
from toolgate.conversation.events import ModelResponse, RunEnd, RunEvent, StepEvent, Usage
from toolgate.conversation.fold import fold, unfold
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import DIALECT
from toolgate.dialects.dialect import AnswerMetadata, Quirks
from toolgate.wire.jsontext import encode

__all__ = ["DIALECT"]

REPLY = AnswerMetadata("msg_ours", 1_700_000_000, "public-name")
ID1, ID2 = "toolu_01" + "a" * 22, "toolu_01" + "b" * 22
WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
USAGE = {"input_tokens": 5, "output_tokens": 1}


def decode_request(*messages: dict[str, Any], **fields: Any) -> ModelRequest:
    """The request that a client's body makes; without messages, a greeting."""
    conversation = list(messages) or [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 100, "messages": conversation, **fields}
    return DIALECT.server.decode_request(json.loads(json.dumps(body)))


REQUEST = decode_request(tools=[WEATHER, CLOCK], stream=True)


def start(usage: Any = None, **fields: Any) -> dict[str, Any]:
    """The first event of a stream."""
    message = {"id": "msg_up", "type": "message", "role": "assistant", "model": "up", "content": [], **fields}
    rest = {"stop_reason": None, "stop_sequence": None, "usage": USAGE if usage is None else usage}
    return {"type": "message_start", "message": {**rest, **message}}


def block(index: Any, **value: Any) -> dict[str, Any]:
    """A block begins."""
    return {"type": "content_block_start", "index": index, "content_block": value}


def text_block(index: Any = 0) -> dict[str, Any]:
    """A block of text begins."""
    return block(index, type="text", text="")


def call_block(index: Any, name: str = "get_weather", id: Any = ID1, **more: Any) -> dict[str, Any]:
    """A call begins."""
    return block(index, type="tool_use", id=id, name=name, **{"input": {}, **more})


def delta(index: Any, **value: Any) -> dict[str, Any]:
    """More of a block; the type follows from the field that is given."""
    kinds = {"text": "text_delta", "partial_json": "input_json_delta", "thinking": "thinking_delta"}
    kinds |= {"signature": "signature_delta", "citation": "citations_delta"}
    kind = value.pop("type", None) or kinds[next(iter(value))]
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **value}}


def stop(index: Any) -> dict[str, Any]:
    """A block ends."""
    return {"type": "content_block_stop", "index": index}


def ending(reason: Any = "end_turn", usage: Any = None, **more: Any) -> dict[str, Any]:
    """Why the message ends."""
    counts = {"output_tokens": 7} if usage is None else usage
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None, **more}, "usage": counts}


PING = {"type": "ping"}
STOP = {"type": "message_stop"}


def wire(*events: dict[str, Any]) -> bytes:
    """Events as bytes."""
    return b"".join([f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events])


def events(data: bytes, size: int = 0, request: ModelRequest = REQUEST) -> list[StepEvent]:
    """What the upstream codec decodes, fed in chunks of `size` bytes."""
    framing, decoder = DIALECT.frame_decoder(), DIALECT.upstream.decoder(request)
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    frames = [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()
    return [event for frame in frames for event in decoder.feed(frame)] + decoder.end()


def read(data: bytes, size: int = 0, request: ModelRequest = REQUEST) -> ModelResponse:
    """The answer that some bytes stream."""
    return fold(events(data, size, request))


def encode_run(*run: RunEvent) -> bytes:
    """The bytes that the server codec sends for some events."""
    encoder = DIALECT.server.encoder(REQUEST, REPLY)
    return b"".join([encoder.encode(event) for event in run])


def streamed(response: ModelResponse) -> bytes:
    """The bytes that the server codec streams for an answer."""
    finish = RunEnd(response.reason, response.usage or Usage(), response.stop_sequence, response.extra)
    return encode_run(*unfold(response), finish)


def whole(response: ModelResponse) -> dict[str, Any]:
    """The answer in one piece, valid by the SDK's types."""
    body: dict[str, Any] = json.loads(DIALECT.server.encode_response(response, REQUEST, REPLY))
    check(BetaMessage, body)
    return body


def relayed(data: bytes) -> bytes:
    """What a relay makes of an upstream's bytes."""
    framing, relay = DIALECT.frame_decoder(), DIALECT.upstream.relay(REQUEST, REPLY)
    return b"".join([relay.feed(frame) for frame in framing.feed(data) + framing.end()]) + end_of(relay)


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream as they stand."""
    found = []
    for frame in DIALECT.frame_decoder().feed(data):
        event = json.loads(frame.data)
        assert frame.event == event["type"]
        found.append(event)
    return found


def blocks_of(data: bytes) -> list[dict[str, Any]]:
    """The content that the SDK collects from a stream."""
    return [block.model_dump(exclude_none=True) for block in collected(data).content]


def collected(data: bytes, beta: bool = True) -> Any:
    """The message that the SDK's own accumulator makes of a stream whose events are valid by its types."""
    adapter: Any = TypeAdapter(BetaRawMessageStreamEvent if beta else RawMessageStreamEvent)
    message: Any = None
    pieces: dict[int, bytes] = {}
    for event in SSEDecoder().iter_bytes(iter([data])):
        if event.event == "ping":
            continue
        value = adapter.validate_json(event.data)
        _know_all(value)
        if beta:
            message = accumulate_beta(
                event=value, current_snapshot=message, json_bufs=pieces, request_headers=httpx2.Headers()
            )
        else:
            message = accumulate_event(event=value, current_snapshot=message, json_bufs=pieces)
    return message


def check(model: type[BaseModel], value: Any) -> None:
    """The value is of this type of the SDK's, and says nothing that the type does not know."""
    _know_all(model.model_validate_json(json.dumps(value), strict=True))


def check_message(value: Any) -> None:
    """A whole answer is valid for clients of the plain and of the beta API."""
    check(SdkMessage, value)
    check(BetaMessage, value)


def _know_all(value: Any) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{type(value).__name__} does not know {value.model_extra}"
        for name in type(value).model_fields:
            _know_all(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            _know_all(item)


def written(request: ModelRequest, quirks: Quirks | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body that the upstream codec posts, as the upstream will parse it, and what was dropped."""
    body, dropped = DIALECT.upstream.encode_request(request, quirks or Quirks())
    return json.loads(encode(body)), dropped


def client(handler: Any) -> Anthropic:
    """The official client, answered by a function instead of a network."""
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return Anthropic(api_key="k", base_url="http://127.0.0.1:1", http_client=http, max_retries=0)
