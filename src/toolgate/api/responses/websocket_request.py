"""Read a request that came as a WebSocket message, and send its response as messages.

`WebSocketResponseSink` takes the place of an HTTP response, below the application, so that keys, limits, the log and tools
work as for other requests. An event of the stream is a message; an error before the stream has started is an `error` event
with the status that it would have had.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.api.response_writer import AnswerRecorder
from toolgate.api.responses.save import ContinuedRequest, large_last_response
from toolgate.api.responses.unstored import WebSocketUnstoredResponses
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ModelStream
from toolgate.http.asgi_types import Message
from toolgate.http.exchange import Header
from toolgate.http.websocket import WebSocket
from toolgate.wire.jsontext import encode

# The ASGI extension of a request that came as a message: its `WebSocketLane`.
SOCKET = "toolgate.socket"

CREATE = "response.create"
_FAILED = (b"event: response.failed\n", b"event: error\n")
# The headers by which clients decide whether and when to try again, and the id to report.
_ERROR_HEADERS = frozenset((b"retry-after", b"x-request-id", b"x-should-retry"))
# Fields of the event that are not fields of the HTTP request; `stream` is always true here.
_ENVELOPE = ("type", "stream_id", "generate", "stream")
# The output of a failed response is not whole: the next request cannot build on it.
_CONTINUABLE = ("completed", "incomplete")


class WebSocketLane(Struct, frozen=True):
    """The lane of a message on its socket, and the socket's unstored responses."""

    memory: WebSocketUnstoredResponses
    name: str | None


def read_create(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the request of a `response.create` event, and whether anything is to be generated."""
    if body.get("type") != CREATE:
        raise InvalidRequest(
            f"Only events of the type {CREATE} are accepted here.",
            param="type",
            code="unknown_event_type",
        )
    if body.get("background") is True:
        raise InvalidRequest("background is not for WebSockets: POST the request instead.", param="background")
    generate = body.get("generate", True)
    if type(generate) not in (bool, type(None)):
        raise InvalidRequest("generate must be true or false.", param="generate", code="invalid_type")
    # Another way to ask for the same: the prompt should be ready for the next request, and no answer is wanted.
    match body.get("prompt_cache_options"):
        case {"prewarm": True}:
            generate = False
    request = {name: value for name, value in body.items() if name not in _ENVELOPE}
    return {**request, "stream": True}, generate is not False


class InMemoryResponseRecorder:
    """Keeps an unstored response in the socket's memory, after another recorder has it (`AnswerRecorder`)."""

    def __init__(self, lane: WebSocketLane, turn: ContinuedRequest, also: AnswerRecorder | None) -> None:
        self._lane = lane
        self._turn = turn
        self._also = also

    async def before_chunk(self, chunk: bytes) -> None:
        """Keep the response if these frames complete it."""
        if self._also is not None:
            await self._also.before_chunk(chunk)
        response = await large_last_response(chunk)
        if response is not None and response.get("status") in _CONTINUABLE:
            turn, output = self._turn, response.get("output")
            sent = output if type(output) is list else []
            await self._lane.memory.keep(self._lane.name, response["id"], [*turn.past, *turn.new_items, *sent])

    async def before_whole(self, body: bytes) -> None:
        """Fail: nothing is sent whole on a socket."""
        raise NotImplementedError


class WebSocketResponseSink:
    """The response to one message; `failed` if it was an error."""

    def __init__(self, socket: WebSocket, message: bytes, lane: str | None) -> None:
        self.disconnected = self.complete = self.failed = False
        self.status = 200
        self.task: asyncio.Task[None] | None = None
        self._socket = socket
        self._message = message
        # Takes the place of the last brace of every event: `{"type":…,"stream_id":"main"}`.
        self._suffix = b"" if lane is None else b',"stream_id":%b}' % encode(lane)

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to receive what was sent before."""
        return self._socket.must_wait

    async def drain(self) -> None:
        """Wait until the client has received what was sent before."""
        await self._socket.drain_writes()

    def whole_body(self) -> bytes:
        """Return the message; `read_create` removes what is not part of a request."""
        return self._message

    def cancel_on_disconnect(self) -> None:
        """Do nothing: the task is always cancelled when the client leaves."""

    def leave(self) -> None:
        """Cancel the task: the client has left."""
        self.disconnected = True
        if self.task is not None:
            self.task.cancel()

    def respond(self, status: int, content_type: bytes, headers: Iterable[Header], body: bytes) -> None:
        """Send an error: a message always asks for a stream, so that only errors are whole."""
        self.status, self.failed, self.complete = status, True, True
        self._socket.write(self._with_lane(error_event(status, msgspec.json.decode(body)["error"], headers)))

    async def send(self, message: Message) -> None:
        """Send the events in a piece of the stream, each as a message."""
        chunk: bytes = message.get("body", b"")
        frames = chunk.split(b"\n\n") if chunk else []
        self.failed = self.failed or any(frame.startswith(_FAILED) for frame in frames)
        lines = [line for frame in frames for line in frame.split(b"\n")]
        # Comments (`: ping`), names (`event: …`) and the terminator (`data: [DONE]`) are not sent: an event names itself.
        events = [self._with_lane(line[6:]) for line in lines if line.startswith(b"data: {")]
        if events and not self.disconnected:
            await self._socket.send(*events)

    def _with_lane(self, event: bytes) -> bytes:
        """Return the event with the name of its lane, if it has one, after its other fields."""
        return event[:-1] + self._suffix if self._suffix else event


def error_event(status: int, error: dict[str, Any], headers: Iterable[Header] = ()) -> bytes:
    """Return an error as an event; its headers stand in both places where clients look for them."""
    sent = {name.decode(): value.decode("latin-1") for name, value in headers if name in _ERROR_HEADERS}
    if sent:
        return encode({"type": "error", "status": status, "error": {**error, "headers": sent}, "headers": sent})
    return encode({"type": "error", "status": status, "error": error})


class EmptyAnswerModel:
    """A model with an empty answer: a request that generates nothing is only kept, for the next one to continue."""

    async def ask(self, request: ModelRequest) -> ModelStream:
        return _EmptyStream()


class _EmptyStream:
    upstream = "warm-up"
    dialect: str | None = None
    warnings: tuple[str, ...] = ()
    whole = True

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        yield [StepStart(), StepEnd("stop", Usage(0, 0))]

    async def aclose(self) -> None:
        pass
