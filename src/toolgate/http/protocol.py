"""One client connection: read requests, run them one at a time, send their responses in order, close.

It knows the transport, the order of requests and when a connection ends. It must not know what a request may look like
(`request_reader`, `request_limits`), how responses and errors are encoded (`response`, `error_response`), nor dialects,
keys or models.

Requests run one at a time. What is sent ahead waits (`pipeline`), unparsed but for what shared a read with its
predecessor. A request that broke a rule gets its error response when its turn comes; then the connection lingers: what
arrives is discarded until the client had time to read the error.

Nothing that raises here may leave a connection open: each callback of the loop aborts the connection when it fails, and a
timer that always runs (`deadlines`) closes one that runs no request and has no deadline.
"""

import asyncio
import contextlib
import logging
import socket
from typing import TypeAlias, cast

from toolgate.conversation.errors import GatewayOverloaded, InvalidRequest, ToolgateError
from toolgate.http import evictions
from toolgate.http.asgi_types import Scope
from toolgate.http.callback_guard import aborts_on_error
from toolgate.http.connection_task import ConnectionTask
from toolgate.http.deadlines import NEVER, ConnectionDeadlines
from toolgate.http.error_response import encode_error_response, openai_error_body
from toolgate.http.flow_control import FlowControl
from toolgate.http.half_close_probe import CHECK_SECONDS, HalfClosedClientProbe
from toolgate.http.listener_state import ListenerState
from toolgate.http.pipeline import PipelinedRequestQueue
from toolgate.http.request_cycle import NAMED_HEADERS, SHARED_CONNECTIONS, RequestResponseCycle
from toolgate.http.request_limits import body_limit, parse_target, path_of
from toolgate.http.request_reader import BODY, HEAD, IDLE, RequestReader
from toolgate.http.upgraded_connection import UpgradedByteReceiver

# Bytes that wait in our own buffer for a slow client: above the first the application waits, below the second it goes on.
_WRITE_HIGH, _WRITE_LOW = 64 * 1024, 16 * 1024
_LAST_REQUEST_SECONDS = 0.5  # for one more request of a client that was not sent `connection: close`
_LINGER_BYTES, _LINGER_SECONDS = 64 * 1024, 2.0
_LINGER_BODIES = 4  # many clients send a body to its end before they read, and never see a response that resets them

# A connection begins with the first stage and never returns to it:
#   _READING → _ERROR_QUEUED   a request broke a rule while earlier ones still run
#   _READING → _UPGRADED       what arrives belongs to a WebSocket
#   any → _LINGERING           the last bytes are sent, and what arrives is discarded
_READING, _ERROR_QUEUED, _LINGERING, _UPGRADED = range(4)

_logger = logging.getLogger(__name__)


class HttpProtocol(asyncio.Protocol):
    """One client connection; `may_send_last` while we drain and the client was not sent `connection: close`."""

    # Slots: an instance with more than thirty attributes in a dictionary loses CPython's fast access to all of them.
    __slots__ = (
        "_client_probe",
        "_deadlines",
        "_last_place",
        "_latest",
        "_linger_bytes",
        "_pipeline",
        "_queued_error",
        "_reader",
        "_running",
        "_stage",
        "_task",
        "_upgradable",
        "_upgraded",
        "client",
        "default_headers",
        "flow",
        "limits",
        "loop",
        "may_send_last",
        "server",
        "state",
        "transport",
    )

    def __init__(self, state: "HttpListenerState", loop: asyncio.AbstractEventLoop) -> None:
        self.state = state
        self.loop = loop
        self.limits = state.limits
        self.default_headers = state.default_headers
        self.may_send_last = False
        self._reader = RequestReader(state.limits, self._start, self._offer_upgrade)
        self._task = ConnectionTask(loop, state.app, state.tasks)
        self._deadlines = ConnectionDeadlines(loop, state.limits, self._check_deadlines)
        self._stage = _READING
        self._latest: RequestResponseCycle | None = None  # of the request that was read last
        self._running: RequestResponseCycle | None = None
        self._queued_error: ToolgateError | None = None
        self._client_probe: HalfClosedClientProbe | None = None
        self._upgradable: RequestResponseCycle | None = None
        self._upgraded: UpgradedByteReceiver | None = None
        self._last_place = False
        self._linger_bytes = 0

    @aborts_on_error
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client its time for the first head, or send it away when there are too many connections."""
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self._pipeline = PipelinedRequestQueue(self.transport)
        connections, limits = self.state.connections, self.limits
        connections.add(self)
        connected: socket.socket = transport.get_extra_info("socket")
        self.server = _address(connected.getsockname())
        try:
            self.client: tuple[str, int] | None = _address(connected.getpeername())
        except OSError:
            self.client = None  # it has left already
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH, low=_WRITE_LOW)
        now = self.loop.time()
        self._deadlines.client_by = now + limits.head_seconds
        self._deadlines.arm(now)
        if self.state.has_room:
            return
        # An overdue connection makes room. Otherwise the client gets one of the last places, which are for callers that
        # have less than their share (`ActiveRequests.check_share`), or is sent away.
        overdue = self.state.evictions.choose((one for one in connections if one is not self), len(connections), now)
        if isinstance(overdue, HttpProtocol):
            overdue.evict(now)
        elif len(connections) <= limits.connections:
            self._last_place = True
        else:
            self.send_error(GatewayOverloaded("Too many connections; try again shortly.", retry_after=1), None)

    def overdue_seconds(self, now: float) -> float:
        """Return for how long the connection has been evictable; 0 if it is not."""
        unread = self._deadlines.unread_seconds(now) - evictions.UNREAD_SECONDS if self._has_unread(now) else 0.0
        return max(unread, self._late_seconds(now))

    def _late_seconds(self, now: float) -> float:
        """Return for how long the client should have sent or closed already; 0 if it has time."""
        due, limits, phase = self._deadlines, self.limits, self._reader.phase
        if due.client_by == NEVER or self.transport.is_closing():
            return 0.0
        if self._stage == _LINGERING:
            return max(0.0, now - due.client_by + _LINGER_SECONDS - evictions.LAST_PLACE_SECONDS)
        if self._stage != _READING or (phase == BODY and self.flow.read_paused):
            return 0.0
        if phase == BODY:
            return max(0.0, now - due.body_by + limits.body_seconds - evictions.BODY_SECONDS)
        if self._running is not None:
            return 0.0
        given = limits.keep_alive_seconds if phase == IDLE and self._latest is not None else limits.head_seconds
        allowed = evictions.LAST_PLACE_SECONDS if self._last_place else evictions.IDLE_SECONDS
        return max(0.0, now - due.client_by + given - allowed)

    def _has_unread(self, now: float) -> bool:
        """Return whether the connection waits for its client to read."""
        due, transport = self._deadlines, self.transport
        # `close` waits until everything is sent, which a client that does not read would put off for ever.
        if due.stalled_by == NEVER and transport.is_closing():
            due.watch_writes(transport.get_write_buffer_size(), now)
        return due.stalled_by != NEVER

    def evict(self, now: float) -> None:
        """Close the connection in favour of a new one."""
        if self._has_unread(now):
            self.transport.abort()
        else:
            self.expire(now)

    @aborts_on_error
    def connection_lost(self, exc: Exception | None) -> None:
        """End the running request, which need not be the one that was read last."""
        self.state.connections.discard(self)  # first, so that no failure below keeps its place taken
        self._deadlines.timer.cancel()
        self._pipeline.clear()
        if self._running is not None:
            self._running.disconnect()
        if self._upgraded is not None:
            self._upgraded.lost()
        self._task.stop()
        self.flow.resume_writing()

    def eof_received(self) -> bool:
        """Keep a half-closed connection while an HTTP/1.1 client waits for a response."""
        # Some clients shut down their sending side after the request. Others have left, which looks the same at first:
        # `HalfClosedClientProbe` finds out.
        try:
            running = self._running
            if running is not None and running.more_body:
                self._reject(InvalidRequest("The body ended before its announced length.", code="incomplete_body"))
                return False
            if running is None or running.http_version != "1.1" or self._upgraded is not None:
                return False
            # Otherwise requests that were sent ahead still wait for their responses.
            if not self._pipeline.requests and not self._pipeline.held and self._queued_error is None:
                running.keep_alive = False
            now = self.loop.time()
            self._client_probe = HalfClosedClientProbe(self.transport, running, now)
            self._deadlines.check_seconds = CHECK_SECONDS
            self._deadlines.arm(now)
            return True
        except Exception as error:  # noqa: BLE001  # the HTTP edge
            self.abort(error)
            return False

    def drain(self) -> None:
        """Close after the running request, or after the next one if the running one's head is sent already."""
        self._task.stop()
        if self._running is not None:
            self._running.close_after()
        if self._upgraded is not None:
            self._upgraded.drain()

    def shutdown(self) -> None:
        """Close a connection that runs no request; a client that is sending a head gets an error."""
        if self._running is not None:
            return
        if self._stage == _READING and self._reader.phase == HEAD:
            self.send_error(GatewayOverloaded("The server is shutting down.", retry_after=1), path_of(self._reader.url))
        self.transport.close()

    def abort(self, error: Exception) -> None:
        """Log the failure of a callback and abort the connection; `connection_lost` ends what runs on it."""
        _logger.error("A connection failed and was closed", exc_info=error)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read what belongs to the current request, hold what comes after it, discard what follows an error."""
        try:
            if self._stage == _READING:
                if self._running is not None and self._must_hold():
                    self._hold(data)
                else:
                    self._read(data)
            elif self._stage == _UPGRADED and self._upgraded is not None:
                self._upgraded.feed(data)
            else:
                self._linger_bytes -= len(data)
                if self._linger_bytes < 0 and self._stage == _LINGERING:
                    self.transport.abort()
        except Exception as error:  # noqa: BLE001  # as `aborts_on_error`, without a call more for every read
            self.abort(error)

    def _must_hold(self) -> bool:
        """Return whether what arrives belongs to a later request than the running one."""
        running = self._running
        return running is not None and (self._reader.phase != BODY or self._latest is not running)

    def _hold(self, data: bytes | memoryview) -> None:
        if self._running is None or self._running.keep_alive:  # else nothing after this response will be read
            self._pipeline.hold(data)

    def _read(self, data: bytes) -> None:
        before, size = self._reader.phase, self.limits.head_bytes
        try:
            if len(data) <= size:
                self._reader.feed(data)
            else:
                # No more at a time than a head may have, so that none outgrows its limit inside the parser.
                rest = memoryview(data)
                while rest and not self._must_hold():
                    self._reader.feed(rest[:size])
                    rest = rest[size:]
                if rest:
                    self._hold(rest)
        except ToolgateError as error:
            self._reject(error)
        else:
            if self._running is not None and self._reader.phase == IDLE:
                self._deadlines.client_by = NEVER  # the client has sent everything
            else:
                self._set_deadline(before)

    def _set_deadline(self, before: int) -> None:
        now, due = self.loop.time(), self._deadlines
        if self._must_hold():
            due.client_by = NEVER
        else:
            due.set_for_phase(self._reader.phase, before, self._latest is None, now)
        due.arm(now)

    def _start(self, version: str, expects_continue: bool, keep_alive: bool) -> RequestResponseCycle:
        """Run the request whose head was read, or queue it; called by the reader."""
        self.may_send_last = False
        reader = self._reader
        path, raw_path, query = parse_target(reader.url)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "method": reader.method.decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": reader.headers,
            "state": self.state.app_state.copy(),
        }
        scope[NAMED_HEADERS] = reader.named
        if self._last_place:
            scope[SHARED_CONNECTIONS] = self.limits.connections - self.limits.reserved
        keep_alive = keep_alive and not self.state.draining and not self._last_place
        response = self._latest = RequestResponseCycle(self, scope, expects_continue, keep_alive)
        if self._running is None:
            self._running = response
            self._task.run(response)
        elif len(self._pipeline.requests) < self.limits.pipelined:
            self._pipeline.requests.append(response)
        else:
            raise InvalidRequest("Too many requests were sent ahead of their turn.", code="too_many_pipelined")
        return response

    def response_complete(self, response: RequestResponseCycle) -> None:
        """Run the next request, or wait for one, or close."""
        try:
            self._running = None
            if self.transport.is_closing():
                return
            if self.flow.read_paused:
                self.flow.resume_reading()
            waiting = self._pipeline
            if not (response.keep_alive and (response.admitted or self.state.has_room)):
                self._close()
            elif (
                waiting.requests
                or waiting.held
                or self._client_probe
                or self._reader.phase != IDLE
                or self._stage != _READING
            ):
                self._run_next()
            else:
                draining = self.may_send_last = self.state.draining
                seconds = _LAST_REQUEST_SECONDS if draining else self.limits.keep_alive_seconds
                by = self._deadlines.client_by = self.loop.time() + seconds
                self._deadlines.timer.by(by)
        except Exception as error:  # noqa: BLE001  # as `aborts_on_error`, without a call more for every request
            self.abort(error)

    def _run_next(self) -> None:
        before = BODY if self._reader.phase == BODY else IDLE
        waiting = self._pipeline
        if waiting.requests:
            self._running = waiting.requests.popleft()
            self._task.run(self._running)
            before = IDLE
        if waiting.held and self._stage == _READING and not self._must_hold():
            self._read(waiting.release())
        if self._running is None and self._queued_error is not None:
            self.send_error(self._queued_error, path_of(self._reader.url))
        elif self._running is None and self._client_probe:
            self.transport.close()
        elif self._stage == _READING:
            self._set_deadline(before)

    def _reject(self, error: ToolgateError) -> None:
        """Answer the request that is being read with an error, after those before it were answered."""
        running, queued = self._running, self._pipeline.requests
        if running is not None and not running.more_body:
            # The error is of a later request, which may be queued already while its body is still read.
            if queued and queued[-1].more_body:
                queued.pop()
            self._stage, self._queued_error, self._deadlines.client_by = _ERROR_QUEUED, error, NEVER
        elif running is not None and running.started:
            # Bytes of its response are sent: an error response would be read as a part of it.
            self.transport.abort()
        elif running is None and self._reader.phase == BODY:
            self._close()  # it was answered before it was read
        else:
            if running is not None:
                running.disconnect()
            self.send_error(error, path_of(self._reader.url))

    @aborts_on_error
    def send_error(self, error: ToolgateError, path: str | None) -> None:
        """Send an error response and close; never raises, because nothing else would end the connection."""
        self._running = None
        self._pipeline.requests.clear()
        if self.transport.is_closing() or self._stage == _LINGERING:
            return
        try:
            status, body = self.state.encode_error(path, error)
        except Exception as failure:  # the encoding of the path's dialect is missing, not the error
            _logger.error("An error response could not be encoded for its path", exc_info=failure)
            status, body = openai_error_body(path, error)
        self.transport.write(encode_error_response(status, body, error.retry_after, self.default_headers))
        if status == 408:
            self.transport.close()  # the client is not sending
        else:
            # 413 and 415 answer a head whose body is on its way.
            self._linger(_LINGER_BODIES * self.limits.body_bytes if status in (413, 415) else _LINGER_BYTES)

    def _close(self) -> None:
        if self._reader.phase == BODY:
            self._linger(_LINGER_BODIES * self.limits.body_bytes)
        elif self._stage != _LINGERING:
            self.transport.close()

    def _linger(self, most: int) -> None:
        """Close our side, and discard up to `most` bytes until the client closes its own or its time is over.

        Closing a socket with unread input would send a reset, which can destroy the response before the client reads it.
        """
        self._stage, self._linger_bytes = _LINGERING, most
        self.flow.resume_reading()
        self._pipeline.resume_reading()
        now = self.loop.time()
        self._deadlines.client_by = now + _LINGER_SECONDS
        self._deadlines.arm(now)
        with contextlib.suppress(OSError):  # the client may be gone already
            self.transport.write_eof()

    def _offer_upgrade(self) -> None:
        self._upgradable = self._latest

    def may_upgrade(self, response: RequestResponseCycle) -> bool:
        """Return whether the client offered to speak WebSocket instead of getting this response."""
        return response is self._upgradable and response is self._running and self._stage == _READING

    def body_limit(self) -> int:
        """Return how large a body of the request that was read last may be; so may a WebSocket message."""
        return body_limit(self._reader.url, self.limits)

    def upgrade(self, response: RequestResponseCycle, head: bytes, receiver: UpgradedByteReceiver) -> None:
        """Send the head and pass what arrives to `receiver`; `response` lasts as long as the connection."""
        response.started, response.keep_alive = True, False
        self._stage, self._upgraded = _UPGRADED, receiver
        self._pipeline.requests.clear()
        self.transport.write(head)
        # A client may send its first messages before it has read the head.
        if held := self._pipeline.release():
            receiver.feed(held)

    def hang_up(self) -> None:
        """Close, after the client had time to read what was sent last, though it may still be sending."""
        if not self.transport.is_closing():
            self._linger(_LINGER_BODIES * self.limits.body_bytes)

    @aborts_on_error
    def pause_writing(self) -> None:
        """Give the client a stall period to read some of what was written."""
        self.flow.pause_writing()
        now = self.loop.time()
        self._deadlines.watch_writes(self.transport.get_write_buffer_size(), now)
        self._deadlines.arm(now)

    @aborts_on_error
    def resume_writing(self) -> None:
        """End the stall period."""
        self.flow.resume_writing()
        self._deadlines.stalled_by = NEVER

    def _check_deadlines(self) -> None:
        """Close the connection if its client has left or missed a deadline; called by the timer."""
        now, due, transport = self.loop.time(), self._deadlines, self.transport
        try:
            if self._client_probe is not None and self._client_probe.client_left(self._running, now):
                transport.abort()
            elif self._has_unread(now) and now >= due.stalled_by:
                if due.is_stalled(transport.get_write_buffer_size(), now):
                    _logger.info("Closed the connection of a client that stopped reading")
                    transport.abort()
            elif now >= due.client_by:
                self.expire(now)
            elif due.client_by == NEVER and not transport.is_closing():
                # Only a running request may do without a deadline. Anything else is a defect of this program, after which
                # the connection must not stay open for ever.
                running = self._running
                if running is None or running.complete or (running.task is not None and running.task.done()):
                    _logger.error("Closed a connection that had no deadline and no running request")
                    transport.close()
        except Exception as error:  # noqa: BLE001  # the HTTP edge
            self.abort(error)
        due.arm(now)

    def expire(self, now: float) -> None:
        """End the connection of a client that has not sent what it must in time, or that is evicted."""
        phase, due = self._reader.phase, self._deadlines
        due.client_by = NEVER
        if self._stage == _LINGERING and not self.transport.get_write_buffer_size():
            self.transport.abort()  # the client had its time to read, and has not closed its side
        elif self._stage == _LINGERING or phase == IDLE:
            self.transport.close()
        elif phase == BODY and self.flow.read_paused:
            due.extend_body(now)  # the application is the slow side
        else:
            part = "headers" if phase == HEAD else "body"
            self._reject(InvalidRequest(f"The {part} took too long to arrive.", status=408, code="request_timeout"))


HttpListenerState: TypeAlias = ListenerState[HttpProtocol]


def _address(name: object) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None for a Unix socket."""
    return (name[0], name[1]) if isinstance(name, tuple) else None
