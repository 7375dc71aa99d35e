"""Shorthand for the tests of the Ollama dialect: lines in, answers out."""

import json
from typing import Any

from tests.dialects.relays import end_of
from toolgate.conversation.events import ModelResponse, RunEnd, StepEvent, Usage
from toolgate.conversation.fold import fold, unfold
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.dialects.dialect import AnswerMetadata, Quirks
from toolgate.dialects.ollama import DIALECT, GENERATE
from toolgate.wire.jsontext import encode

__all__ = ["DIALECT", "GENERATE"]

REPLY = AnswerMetadata("ollama-1", 1_700_000_000, "public-name")
DATE = "2023-11-14T22:13:20.000000000Z"
WEATHER = ToolDef("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = ToolDef("clock")
REQUEST = ModelRequest("m", (Message("user", (Text("Hi"),)),), (WEATHER, CLOCK), stream=True, dialect="ollama")


def line(content: str | None = "", **fields: Any) -> dict[str, Any]:
    """A line as Ollama sends it; `thinking` and `tool_calls` go into its message."""
    message = {"role": "assistant", "content": content}
    message |= {name: fields.pop(name) for name in ("thinking", "tool_calls", "images") if name in fields}
    return {"model": "m", "created_at": "2026-01-01T00:00:00.5Z", "message": message, "done": False, **fields}


def call(name: str = "get_weather", arguments: Any = None, **more: Any) -> dict[str, Any]:
    """An entry of `tool_calls`."""
    return {"function": {"name": name, "arguments": {"city": "Oslo"} if arguments is None else arguments}, **more}


DONE = line(done=True, done_reason="stop", prompt_eval_count=5, eval_count=7)


def wire(*lines: dict[str, Any] | str) -> bytes:
    """Lines as bytes."""
    return b"".join([(one if isinstance(one, str) else json.dumps(one)).encode() + b"\n" for one in lines])


def events(data: bytes, size: int = 0, request: ModelRequest = REQUEST) -> list[StepEvent]:
    """What the upstream codec decodes, fed in chunks of `size` bytes."""
    framing, decoder = DIALECT.frame_decoder(), DIALECT.upstream.decoder(request)
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    frames = [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()
    return [event for frame in frames for event in decoder.feed(frame)] + decoder.end()


def read(data: bytes, size: int = 0, request: ModelRequest = REQUEST) -> ModelResponse:
    """The answer that some bytes stream."""
    return fold(events(data, size, request))


def streamed(response: ModelResponse, dialect: Any = DIALECT) -> bytes:
    """The bytes that the server codec streams for an answer."""
    encoder = dialect.server.encoder(REQUEST, REPLY)
    finish = RunEnd(response.reason, response.usage or Usage(), response.stop_sequence, response.extra)
    return b"".join([encoder.encode(event) for event in [*unfold(response), finish]])


def encode_lines(response: ModelResponse, dialect: Any = DIALECT) -> list[dict[str, Any]]:
    """The lines that the server codec streams for an answer."""
    data = streamed(response, dialect)
    assert data.decode().splitlines() == data.decode().split("\n")[:-1], "a line may not hold what looks like its end"
    return [json.loads(one) for one in data.split(b"\n")[:-1]]


def relayed(data: bytes, dialect: Any = DIALECT) -> list[dict[str, Any]]:
    """The lines that a relay makes of an upstream's."""
    framing, relay = dialect.frame_decoder(), dialect.upstream.relay(REQUEST, REPLY)
    passed = b"".join([relay.feed(frame) for frame in framing.feed(data) + framing.end()]) + end_of(relay)
    return [json.loads(one) for one in passed.split(b"\n")[:-1]]


def written(request: ModelRequest, quirks: Quirks | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body that the upstream codec posts, as the upstream will parse it, and what was dropped."""
    body, dropped = DIALECT.upstream.encode_request(request, quirks or Quirks())
    return json.loads(encode(body)), dropped
