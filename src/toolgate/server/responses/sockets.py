"""The Responses API over WebSockets, at the path that it is posted to.

A client sends `{"type": "response.create", ...}` with the fields of the HTTP request and hears the events of the stream, one
a message, without a terminator. Messages of one lane are answered one after the other, each lane by itself; a lane is named
by `stream_id`, which its events repeat. The last response of each lane can be continued by `previous_response_id` even if
it was not stored; a continuation that fails makes it forgotten. `"generate": false` only has the request remembered. There
is no event to cancel by: whoever does not want the rest closes the socket. `response.steer` is refused in its own words.

Every message is handed to the application as a POST of its own, with the headers of the handshake: keys and configuration
are those of now, not of when the socket was opened.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest, Overloaded, RateLimited, ToolgateError
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.dialects.openai_responses.answer import error_object
from toolgate.server.app import Call, Endpoint
from toolgate.server.edge.answer import ANSWER
from toolgate.server.edge.websocket import (
    BROKE_RULES,
    GOING_AWAY,
    NORMAL,
    RESTARTING,
    Patience,
    WebSocket,
    accept,
    upgrade_required,
)
from toolgate.server.exchange import Header, Receive, Scope, Send
from toolgate.server.exchange import Message as AsgiMessage
from toolgate.server.responses.memory import Memory, Shelf
from toolgate.server.responses.spoken import SOCKET, Lane, Spoken, error_event
from toolgate.wire.jsontext import encode

PATH = "/v1/responses"
_STEER = "response.steer"
_OF_THE_HANDSHAKE = frozenset(
    (
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-version",
    )
)
_LONGEST_NAME = 256
_LONGEST_RAW = 4096  # bytes of JSON

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Terms(Struct, frozen=True):
    """How long a socket lives, and how much may go on on it; what OpenAI allows."""

    seconds: float = 3600.0
    running: int = 16
    lanes: int = 32
    waiting: int = 64


class Sockets:
    """All open WebSockets; they outlive the configuration that they were opened under."""

    def __init__(self, app: App, terms: Terms = Terms(), shelf: Shelf | None = None) -> None:  # noqa: B008  # immutable
        self.terms = terms
        self.patience = Patience()
        self._app = app
        self._shelf = shelf or Shelf()
        self._open: Counter[str] = Counter()
        self._most = self._most_each = 0

    def endpoints(self, most: int, most_each: int) -> list[Endpoint]:
        """What is served, with so many sockets altogether and of one key; none at all if there may be 0."""
        self._most, self._most_each = most, most_each
        return [Endpoint("GET", PATH, self.connect, OPENAI_RESPONSES.server)]

    async def connect(self, call: Call) -> None:
        """Open a WebSocket on which `response.create` events are answered with the events of their responses."""
        who = call.caller.name
        self._admit(call)
        socket = accept(call.exchange, self.patience)
        call.record.status = 101
        self._open[who] += 1
        connection = Connection(socket, call, self._app, self.terms, Memory(self._shelf))
        try:
            await connection.serve()
        finally:
            self._open[who] -= 1

    def _admit(self, call: Call) -> None:
        if not self._most:
            raise upgrade_required(call.exchange, "WebSockets are turned off here: POST the request instead.")
        if self._open[call.caller.name] >= self._most_each:
            raise RateLimited(
                "This key has too many WebSockets open already.", code="too_many_websockets", retry_after=5
            )
        if self._open.total() >= self._most:
            raise Overloaded("Too many WebSockets are open already.", code="too_many_websockets", retry_after=5)


class _Create(Struct, frozen=True):
    """A message that waits for its turn."""

    lane: str | None
    message: bytes
    previous: Any


class _Leaving(Struct, frozen=True):
    """Why the socket will be closed once nothing runs on it, and what is said to whoever asks for more meanwhile."""

    code: int
    error: ToolgateError
    told: bool = False


class Connection:
    """One socket: its lanes, what runs and what waits."""

    def __init__(self, socket: WebSocket, call: Call, app: App, terms: Terms, memory: Memory) -> None:
        self._socket = socket
        self._record = call.record
        self._app = app
        self._terms = terms
        self._memory = memory
        self._headers = [header for header in call.exchange.headers if header[0] not in _OF_THE_HANDSHAKE]
        self._lanes: set[str] = set()
        self._waiting: deque[_Create] = deque()
        self._running: dict[str | None, Spoken] = {}
        self._leaving: _Leaving | None = None
        socket.on_drain = self._drain

    async def serve(self) -> None:
        """Answer messages until either side has had enough."""
        loop = asyncio.get_running_loop()
        ageing = loop.call_later(self._terms.seconds, self._grow_old)
        try:
            while not self._is_over():
                message = await self._socket.receive()
                if message is not None:
                    self._take(message)
                if self._socket.must_wait:
                    await self._socket.drain_writes()
            await self._say_goodbye()
        except asyncio.CancelledError:
            await self._cut_short()
        finally:
            ageing.cancel()
            self._memory.clear()
            for spoken in self._running.values():  # none, unless we are ended by force
                spoken.leave()

    def _is_over(self) -> bool:
        return self._socket.gone or (self._leaving is not None and not self._running)

    async def _say_goodbye(self) -> None:
        if self._socket.gone:
            await self._stop()
        leaving = self._leaving
        if leaving is not None and leaving.told:
            self._tell(leaving.error)
        await self._socket.close(leaving.code if leaving else NORMAL)

    async def _cut_short(self) -> None:
        """The key is not valid any more, or the server ends: whatever runs is told so, and then the client."""
        why = self._record.dismissed
        self._leave(RESTARTING if why is None else BROKE_RULES, why or self._record.why_ended())
        await self._stop()
        if why is not None:
            self._tell(why)
        await self._socket.close(RESTARTING if why is None else BROKE_RULES)

    async def _stop(self) -> None:
        """End what runs: in silence if nobody listens, else with a last word."""
        self._waiting.clear()
        running = [spoken for spoken in self._running.values() if spoken.task is not None]
        for spoken in running:
            if self._socket.gone:
                spoken.leave()
            elif spoken.task is not None and not spoken.task.cancelling():
                spoken.task.cancel("The server is shutting down.")
        tasks = [spoken.task for spoken in running if spoken.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _drain(self) -> None:
        self._leave(GOING_AWAY, Overloaded("The server is shutting down.", retry_after=1))

    def _grow_old(self) -> None:
        minutes = round(self._terms.seconds / 60)
        self._leave(
            NORMAL,
            InvalidRequest(
                f"This WebSocket has been open for {minutes} minutes, which is the limit; open a new one.",
                code="websocket_connection_limit_reached",
            ),
            told=True,
        )

    def _leave(self, code: int, error: ToolgateError, *, told: bool = False) -> None:
        """Close when nothing runs any more; what waits is refused now."""
        self._leaving = self._leaving or _Leaving(code, error, told)
        while self._waiting:
            self._tell(error, self._waiting.popleft().lane)
        self._socket.wake()

    def _take(self, message: bytes) -> None:
        event = _read(message)
        lane = event.get("stream_id")
        if event.get("type") == _STEER:
            self._socket.write(_not_steered(event))
            return
        refusal = self._refusal(lane, len(message))
        if refusal is not None:
            self._tell(refusal, lane if type(lane) is str else None)
            return
        if lane is not None:
            self._lanes.add(lane)
        self._waiting.append(_Create(lane, message, event.get("previous_response_id")))
        self._begin()

    def _refusal(self, lane: Any, size: int) -> ToolgateError | None:
        """What keeps a message from being answered, before anybody has looked at what it asks."""
        terms = self._terms
        if self._leaving is not None:
            return self._leaving.error
        if lane is not None and not (type(lane) is str and 0 < len(lane) <= _LONGEST_NAME):
            return InvalidRequest(
                f"stream_id must be a text of 1 to {_LONGEST_NAME} characters.", param="stream_id", code="invalid_type"
            )
        if lane is not None and lane not in self._lanes and len(self._lanes) >= terms.lanes:
            return InvalidRequest(
                f"A WebSocket has at most {terms.lanes} lanes; open another one.",
                param="stream_id",
                code="websocket_stream_limit_reached",
            )
        waiting = sum(len(one.message) for one in self._waiting)
        if len(self._waiting) >= terms.waiting or (waiting and waiting + size > self._socket.most):
            return RateLimited("Too many messages wait for their turn on this WebSocket.", retry_after=1)
        return None

    def _begin(self) -> None:
        """Begin whatever waits and may run: first come, first served, but only one at a time of each lane."""
        for create in tuple(self._waiting):
            if len(self._running) >= self._terms.running:
                break
            if create.lane not in self._running:
                self._waiting.remove(create)
                spoken = self._running[create.lane] = Spoken(self._socket, create.message, create.lane)
                spoken.task = asyncio.get_running_loop().create_task(self._answer(create, spoken))
        self._socket.busy = bool(self._running)

    async def _answer(self, create: _Create, spoken: Spoken) -> None:
        try:
            await self._app(self._scope(create, spoken), _no_more, spoken.send)
        finally:
            del self._running[create.lane]
            if spoken.failed and type(create.previous) is str:
                self._memory.forget(create.previous)
            if spoken.status == 401:
                self._leave(BROKE_RULES, InvalidRequest("This WebSocket is closed."))
            self._begin()
            if self._leaving is not None:
                self._socket.wake()

    def _scope(self, create: _Create, spoken: Spoken) -> Scope:
        """The message as the application would see it, had it been posted."""
        length = (b"content-length", b"%d" % len(create.message))
        headers: list[Header] = [*self._headers, (b"content-type", b"application/json"), length]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "extensions": {ANSWER: spoken, SOCKET: Lane(self._memory, create.lane)},
        }

    def _tell(self, error: ToolgateError, lane: str | None = None) -> None:
        told = error_object(error)
        headers = [] if error.retry_after is None else [(b"retry-after", b"%d" % max(1, round(error.retry_after)))]
        event = error_event(error.status, told, headers)
        self._socket.write(event if lane is None else event[:-1] + b',"stream_id":%b}' % encode(lane))


def _read(message: bytes) -> dict[str, Any]:
    """What a message says of itself; nothing if it cannot be read, which whoever answers it will find and say."""
    try:
        event = msgspec.json.decode(message, type=_Envelope)
        names = ("type", "stream_id", "previous_response_id")
        return {"input": event.input} | {name: _short(getattr(event, name)) for name in names}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}


def _short(raw: msgspec.Raw) -> Any:
    """A value that is a name, or what is none and will be refused."""
    return msgspec.json.decode(raw) if len(bytes(raw)) <= _LONGEST_RAW else {}


class _Envelope(Struct):
    type: msgspec.Raw = msgspec.Raw(b"null")  # what is not short is no name, and takes long to decode
    stream_id: msgspec.Raw = msgspec.Raw(b"null")
    previous_response_id: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")  # looked at only when it has to be sent back


def _not_steered(event: dict[str, Any]) -> bytes:
    """The refusal of input for a response under way, with the input, so that the client can send it with its next."""
    steer = {"previous_response_id": event["previous_response_id"], "input": event["input"]}
    message = "Responses cannot be steered here; send this input with the next response.create."
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": message}
    return encode({"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error})


async def _no_more() -> AsgiMessage:
    """The whole message is there from the beginning."""
    return {"type": "http.disconnect"}
