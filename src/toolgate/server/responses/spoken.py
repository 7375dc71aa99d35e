"""A request that came as a message on a WebSocket: how it is read, kept in mind, and how its answer becomes messages.

It stands where the answer to an HTTP request stands, below the application, so that whatever holds for such a request
holds for this one: keys, limits, the log, tools. An event of the stream is a message; an error before the stream has begun
is an `error` event with the status that it would have had.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer
from toolgate.server.edge.websocket import WebSocket
from toolgate.server.endpoints import Keeper
from toolgate.server.exchange import Header, Message
from toolgate.server.responses.keeper import Turn, last_response
from toolgate.server.responses.memory import Memory
from toolgate.wire.jsontext import encode

SOCKET = "toolgate.socket"
"""The extension under which a request says that it came as a message: a `Lane`."""

CREATE = "response.create"
_FAILED = (b"event: response.failed\n", b"event: error\n")
_TOLD_HEADERS = frozenset((b"retry-after", b"x-request-id", b"x-should-retry"))
_ENVELOPE = ("type", "stream_id", "generate", "stream")
_CONTINUABLE = ("completed", "incomplete")


class Lane(Struct, frozen=True):
    """Where on a socket a message belongs, and what that remembers."""

    memory: Memory
    name: str | None


def read_create(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The request that a `response.create` event makes, and whether anything is to be generated."""
    if body.get("type") != CREATE:
        raise InvalidRequest(
            f"Only {CREATE} events are understood here, and response.steer to say that it is not.",
            param="type",
            code="unknown_event_type",
        )
    if body.get("background") is True:
        raise InvalidRequest("background is not for WebSockets: POST the request instead.", param="background")
    generate = body.get("generate", True)
    if type(generate) not in (bool, type(None)):
        raise InvalidRequest("generate must be true or false.", param="generate", code="invalid_type")
    match body.get("prompt_cache_options"):
        case {"prewarm": True}:
            generate = False
    request = {name: value for name, value in body.items() if name not in _ENVELOPE}
    return {**request, "stream": True}, generate is not False


class Remembering:
    """Keeps a response that is not stored in the socket's memory, beside whatever else keeps it."""

    def __init__(self, lane: Lane, turn: Turn, also: Keeper | None) -> None:
        self._lane = lane
        self._turn = turn
        self._also = also

    async def before_chunk(self, chunk: bytes) -> None:
        """Called before frames go out; those that complete the response are looked into."""
        if self._also is not None:
            await self._also.before_chunk(chunk)
        response = last_response(chunk)
        if response is not None and response.get("status") in _CONTINUABLE:
            turn, output = self._turn, response.get("output")
            told = output if type(output) is list else []
            self._lane.memory.keep(self._lane.name, response["id"], [*turn.past, *turn.new_items, *told])

    async def before_whole(self, body: bytes) -> None:
        """Nothing is told whole on a socket."""
        raise NotImplementedError


class Spoken:
    """The answer to one message; `failed` if it was an error."""

    def __init__(self, socket: WebSocket, message: bytes, lane: str | None) -> None:
        self.disconnected = self.complete = self.failed = False
        self.status = 200
        self.task: asyncio.Task[None] | None = None
        self._socket = socket
        self._message = message
        self._name = b"" if lane is None else b',"stream_id":%b}' % encode(lane)

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to take what was sent before."""
        return self._socket.must_wait

    async def drain(self) -> None:
        """Wait until the client has taken what was sent before."""
        await self._socket.drain_writes()

    def whole_body(self) -> bytes:
        """The message; what in it is no part of a request is taken out where it is read."""
        return self._message

    def cancel_on_departure(self) -> None:
        """The task is cancelled when the client leaves, whether it wants that or not."""

    def leave(self) -> None:
        """Nobody listens any more."""
        self.disconnected = True
        if self.task is not None:
            self.task.cancel()

    def respond(self, status: int, content_type: bytes, headers: Iterable[Header], body: bytes) -> None:
        """A whole answer can only be an error: a message always asks for a stream."""
        self.status, self.failed, self.complete = status, True, True
        self._socket.write(self._named(error_event(status, msgspec.json.decode(body)["error"], headers)))

    async def send(self, message: Message) -> None:
        """Send the events in a piece of the stream, each as a message."""
        chunk: bytes = message.get("body", b"")
        frames = chunk.split(b"\n\n") if chunk else []
        self.failed = self.failed or any(frame.startswith(_FAILED) for frame in frames)
        events = [self._named(event) for frame in frames for event in _events(frame)]
        if events and not self.disconnected:
            await self._socket.send(*events)

    def _named(self, event: bytes) -> bytes:
        """The event with the name of its lane, if it has one: written behind its other fields."""
        return event[:-1] + self._name if self._name else event


def _events(frame: bytes) -> list[bytes]:
    """What a frame of the stream tells; a comment and the terminator tell nothing."""
    return [line[6:] for line in frame.split(b"\n") if line.startswith(b"data: {")]


def error_event(status: int, error: dict[str, Any], headers: Iterable[Header] = ()) -> bytes:
    """An error as an event; headers that a program needs stand where one client or another looks for them."""
    told = {name.decode(): value.decode("latin-1") for name, value in headers if name in _TOLD_HEADERS}
    if told:
        return encode({"type": "error", "status": status, "error": {**error, "headers": told}, "headers": told})
    return encode({"type": "error", "status": status, "error": error})


class WarmUp:
    """A model that says nothing: a request that generates nothing is only remembered, for the next to continue."""

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, which is empty."""
        return _Silence()


class _Silence:
    upstream = "warm-up"
    dialect: str | None = None
    warnings: tuple[str, ...] = ()
    whole = True

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        yield [StepStart(), StepEnd("stop", Usage(0, 0))]

    async def aclose(self) -> None:
        pass
