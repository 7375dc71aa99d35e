"""Serve the Responses API over WebSockets, at the path of its POST requests.

A client sends `{"type": "response.create", ...}` with the fields of the HTTP request and gets the events of the stream, one
a message, without a terminator. Messages of one lane are answered one after the other, each lane by itself; a lane is named
by `stream_id`, which its events repeat. The last response of each lane can be continued by `previous_response_id` even if
it was not stored; a continuation that fails drops it. `"generate": false` only keeps the request. No event cancels a
response: a client that does not want the rest closes the socket. `response.steer` is refused with an event of its own.

Every message goes through the application as a POST of its own, with the headers of the handshake: the keys and the
configuration in force now apply, not those of when the socket was opened.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.api.responses.unstored import UnstoredResponses, WebSocketUnstoredResponses
from toolgate.api.responses.websocket_request import SOCKET, WebSocketLane, WebSocketResponseSink, error_event
from toolgate.conversation.errors import GatewayOverloaded, InvalidRequest, RateLimited, ToolgateError
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.dialects.openai_responses.response_object import error_object
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.http.asgi_types import Message as AsgiMessage
from toolgate.http.asgi_types import Receive, Scope, Send
from toolgate.http.exchange import Header
from toolgate.http.request_cycle import RESPONSE
from toolgate.http.websocket import (
    BROKE_RULES,
    GOING_AWAY,
    NORMAL,
    RESTARTING,
    WebSocketTimeouts,
    accept,
    upgrade_required,
)
from toolgate.wire.jsontext import encode, repair_escapes

PATH = "/v1/responses"
_STEER = "response.steer"
# Headers of the handshake that would be wrong for the requests on the socket: they describe the handshake itself, and
# one idempotency key would make every later message a repetition of the first.
_HANDSHAKE_HEADERS = frozenset(
    (
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-version",
    )
)
_MAX_NAME_LENGTH = 256
# Enough for the JSON of 256 characters, even if each is escaped as two `\uXXXX`.
_MAX_RAW_BYTES = 4096

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class ResponseSocketLimits(Struct, frozen=True):
    """How long a socket lives, and how many lanes and messages it may have; what OpenAI allows."""

    seconds: float = 3600.0
    running: int = 16
    lanes: int = 32
    waiting: int = 64


class ResponseWebSockets:
    """All open WebSockets; they outlive the configuration that they were opened under."""

    def __init__(
        self, app: App, options: ResponseSocketLimits | None = None, unstored: UnstoredResponses | None = None
    ) -> None:
        self.options = options or ResponseSocketLimits()
        self.timeouts = WebSocketTimeouts()
        self._app = app
        self._unstored = unstored or UnstoredResponses()
        self._open: Counter[str] = Counter()

    def endpoints(self, max_sockets: int, max_per_key: int) -> list[HttpRoute]:
        """Return the endpoint, for so many sockets altogether and of one key; 0 turns WebSockets off."""

        async def connect(call: AdmittedHttpRequest) -> None:
            """Open a WebSocket on which `response.create` events are answered with the events of their responses."""
            if not max_sockets:
                raise upgrade_required(call.exchange, "WebSockets are turned off here: POST the request instead.")
            if self._open[call.caller.name] >= max_per_key:
                raise RateLimited(
                    "This key has too many WebSockets open already.", code="too_many_websockets", retry_after=5
                )
            if self._open.total() >= max_sockets:
                raise GatewayOverloaded(
                    "Too many WebSockets are open already.", code="too_many_websockets", retry_after=5
                )
            owner, memory = call.caller.name, WebSocketUnstoredResponses(self._unstored)
            connection = ResponseWebSocket(call, self.timeouts, self._app, self.options, memory)
            call.record.status = 101  # for the log: the connection is no HTTP response any more
            self._open[owner] += 1
            try:
                await connection.serve()
            finally:
                self._open[owner] -= 1

        return [HttpRoute("GET", PATH, connect, OPENAI_RESPONSES.server)]


class _Create(Struct, frozen=True):
    """A message that waits for its turn."""

    lane: str | None
    message: bytes
    previous: Any


class _Closing(Struct, frozen=True):
    """Why the socket is closed once nothing runs on it, and the error for messages that come meanwhile."""

    code: int
    error: ToolgateError
    announced: bool = False


class ResponseWebSocket:
    """One socket: its lanes, what runs and what waits."""

    def __init__(
        self,
        call: AdmittedHttpRequest,
        timeouts: WebSocketTimeouts,
        app: App,
        options: ResponseSocketLimits,
        memory: WebSocketUnstoredResponses,
    ) -> None:
        """Upgrade the request's connection; 426 if it is no handshake."""
        self._record = call.record
        self._app = app
        self._options = options
        self._memory = memory
        self._headers = [header for header in call.exchange.headers if header[0] not in _HANDSHAKE_HEADERS]
        self._lanes: set[str] = set()
        self._waiting: deque[_Create] = deque()
        self._running: dict[str | None, WebSocketResponseSink] = {}
        self._closing: _Closing | None = None
        self._socket = accept(call.exchange, timeouts, self._drain)

    async def serve(self) -> None:
        """Answer messages until either side closes the socket."""
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(self._options.seconds, self._expire)
        try:
            while not self._socket.gone and (self._closing is None or self._running):
                message = await self._socket.receive()
                if message is not None:
                    self._receive(message, await _read(message))
                    message = None  # it may be large, and is not kept while the next one is waited for
                # Refusals are written without waiting: a client that sends without reading must not pile them up.
                if self._socket.must_wait:
                    await self._socket.drain_writes()
            if self._socket.gone:
                await self._stop()
            closing = self._closing
            if closing is not None and closing.announced:
                self._send_error(closing.error)
            await self._socket.close(closing.code if closing else NORMAL)
        except asyncio.CancelledError:
            await self._abort()
        finally:
            expiry.cancel()
            self._memory.clear()
            for exchange in self._running.values():  # none, unless this task is cancelled twice
                exchange.leave()

    async def _abort(self) -> None:
        """End all responses and close: the key is not valid any more, or the server stops."""
        why = self._record.cancelled_with
        self._start_closing(RESTARTING if why is None else BROKE_RULES, why or self._record.end_error())
        await self._stop()
        if why is not None:
            self._send_error(why)
        await self._socket.close(RESTARTING if why is None else BROKE_RULES)

    async def _stop(self) -> None:
        """End running responses: silently if the client has left, else with an error."""
        self._waiting.clear()
        running = [exchange for exchange in self._running.values() if exchange.task is not None]
        for exchange in running:
            if self._socket.gone:
                exchange.leave()
            # Not twice: the second cancellation would interrupt the task while it sends its error.
            elif exchange.task is not None and not exchange.task.cancelling():
                exchange.task.cancel("The server is shutting down.")
        tasks = [exchange.task for exchange in running if exchange.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _drain(self) -> None:
        self._start_closing(GOING_AWAY, GatewayOverloaded("The server is shutting down.", retry_after=1))

    def _expire(self) -> None:
        minutes = round(self._options.seconds / 60)
        self._start_closing(
            NORMAL,
            InvalidRequest(
                f"This WebSocket has been open for {minutes} minutes, which is the limit; open a new one.",
                code="websocket_connection_limit_reached",
            ),
            announced=True,
        )

    def _start_closing(self, code: int, error: ToolgateError, *, announced: bool = False) -> None:
        """Close when nothing runs any more; refuse what waits now."""
        self._closing = self._closing or _Closing(code, error, announced)  # the first reason is the one to report
        while self._waiting:
            self._send_error(error, self._waiting.popleft().lane)
        self._socket.wake()

    def _receive(self, message: bytes, event: dict[str, Any]) -> None:
        lane = event.get("stream_id")
        if event.get("type") == _STEER:
            # The refusal repeats the input, so that the client can send it with its next response.create.
            steer = {"previous_response_id": event["previous_response_id"], "input": event["input"]}
            reason = "Responses cannot be steered here; send this input with the next response.create."
            error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": reason}
            self._socket.write(
                encode({"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error})
            )
            return
        refusal = self._refusal(lane, len(message))
        if refusal is not None:
            self._send_error(refusal, lane if type(lane) is str else None)
            return
        # A lane is never given up: its last response can be continued as long as the socket is open.
        if lane is not None:
            self._lanes.add(lane)
        self._waiting.append(_Create(lane, message, event.get("previous_response_id")))
        self._start_waiting()

    def _refusal(self, lane: Any, size: int) -> ToolgateError | None:
        """Return why a message cannot be accepted, before it is decoded."""
        options = self._options
        if self._closing is not None:
            return self._closing.error
        if lane is not None and not (type(lane) is str and 0 < len(lane) <= _MAX_NAME_LENGTH):
            return InvalidRequest(
                f"stream_id must be a string of 1 to {_MAX_NAME_LENGTH} characters.",
                param="stream_id",
                code="invalid_type",
            )
        if lane is not None and lane not in self._lanes and len(self._lanes) >= options.lanes:
            return InvalidRequest(
                f"A WebSocket has at most {options.lanes} lanes; open another one.",
                param="stream_id",
                code="websocket_stream_limit_reached",
            )
        # Together they may be as large as one message: one that is that large itself is accepted when none waits.
        waiting = sum(len(one.message) for one in self._waiting)
        if len(self._waiting) >= options.waiting or (waiting and waiting + size > self._socket.most):
            return RateLimited("Too many messages wait for their turn on this WebSocket.", retry_after=1)
        return None

    def _start_waiting(self) -> None:
        """Start waiting messages that may run: first come, first served, but only one at a time of each lane."""
        for create in tuple(self._waiting):
            if len(self._running) >= self._options.running:
                break
            if create.lane not in self._running:
                self._waiting.remove(create)
                exchange = self._running[create.lane] = WebSocketResponseSink(self._socket, create.message, create.lane)
                exchange.task = asyncio.get_running_loop().create_task(self._answer(create, exchange))
        self._socket.busy = bool(self._running)  # the client may be silent while it waits for an answer

    async def _answer(self, create: _Create, exchange: WebSocketResponseSink) -> None:
        """Have the application answer the message as a POST request."""
        length = (b"content-length", b"%d" % len(create.message))
        headers: list[Header] = [*self._headers, (b"content-type", b"application/json"), length]
        scope: Scope = {
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
            "extensions": {RESPONSE: exchange, SOCKET: WebSocketLane(self._memory, create.lane)},
        }
        try:
            await self._app(scope, _no_more_body, exchange.send)
        finally:
            del self._running[create.lane]
            # As the Open Responses specification has it: after a failure the client starts from what it knows itself.
            if exchange.failed and type(create.previous) is str:
                self._memory.forget(create.previous)
            # The key of the handshake has become invalid: no later message can be answered either.
            if exchange.status == 401:
                self._start_closing(BROKE_RULES, InvalidRequest("This WebSocket is closed."))
            self._start_waiting()
            if self._closing is not None:
                self._socket.wake()

    def _send_error(self, error: ToolgateError, lane: str | None = None) -> None:
        announced = error_object(error)
        headers = [] if error.retry_after is None else [(b"retry-after", b"%d" % max(1, round(error.retry_after)))]
        event = error_event(error.status, announced, headers)
        self._socket.write(event if lane is None else event[:-1] + b',"stream_id":%b}' % encode(lane))


async def _read(message: bytes) -> dict[str, Any]:
    """Return the envelope of a message; empty if it cannot be decoded, which the application answers with an error."""
    envelope = _decode_envelope(message)
    if envelope is not None:
        return envelope
    # The application replaces lone surrogates and answers: without its envelope the request would run on another lane.
    if len(message) <= LARGE_BODY:
        return _decode_repaired_envelope(message) or {}
    return await run_in_thread(_decode_repaired_envelope, message) or {}


def _decode_repaired_envelope(message: bytes) -> dict[str, Any] | None:
    repaired = repair_escapes(message)
    return None if repaired is None else _decode_envelope(repaired)


def _decode_envelope(message: bytes) -> dict[str, Any] | None:
    try:
        event = _decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    names = {name: _decode_name(getattr(event, name)) for name in ("type", "stream_id", "previous_response_id")}
    return {"input": event.input, **names}


def _decode_name(raw: msgspec.Raw) -> Any:
    """Return the value of a field; an empty object, which is no name either, if it is too long or cannot be decoded."""
    if len(bytes(raw)) > _MAX_RAW_BYTES:
        return {}
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}


class _Envelope(Struct):
    type: msgspec.Raw = msgspec.Raw(b"null")
    stream_id: msgspec.Raw = msgspec.Raw(b"null")
    previous_response_id: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")  # never decoded: it is only sent back, as it came


_decode = msgspec.json.Decoder(_Envelope).decode


async def _no_more_body() -> AsgiMessage:
    """Report the end of the body: the whole message is there from the beginning."""
    return {"type": "http.disconnect"}
