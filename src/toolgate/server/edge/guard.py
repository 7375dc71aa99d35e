"""The HTTP edge below ASGI: how long a client may take, how much may wait, and in which turn it is answered.

uvicorn with httptools takes headers without end, never closes a silent socket, takes a half-close for a departure and
adds trailers to the request's headers.  This protocol is uvicorn's own with those gaps closed.

It knows sockets, clocks and turns.  It must not know what a request may look like (`reader`, `head`), how answers are
framed (`answer`) or worded (`refusal`), nor dialects, keys or models.

Requests run one at a time.  What is sent ahead waits, unread but for what shared a read with its predecessor.  A request
that broke a rule is refused in its turn; then the connection lingers, throwing away what arrives, until the client has
had time to read the refusal.

Every request passes here, so a deadline that is met must cost no more than an assignment: see `alarm`.

Nothing that raises here may leave a connection open: each callback of the loop aborts the connection when it fails, and a
timer that is never off closes one that runs no request and has no deadline.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import wraps
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from toolgate.conversation.errors import InvalidRequest, Overloaded, ToolgateError
from toolgate.server.edge.alarm import NEVER, Alarm
from toolgate.server.edge.answer import Answer
from toolgate.server.edge.departure import EVERY, HalfClosed
from toolgate.server.edge.head import Limits, body_limit, path_of, target_of
from toolgate.server.edge.reader import BODY, HEAD, IDLE, RequestReader
from toolgate.server.edge.refusal import Refuse, encode_refusal, plain_refusal
from toolgate.server.edge.worker import Worker

_WRITE_HIGH, _WRITE_LOW = 64 * 1024, 16 * 1024
_HELD_BYTES = 64 * 1024  # of requests sent ahead of their turn
_STALL_BYTES = 16 * 1024  # a client that takes fewer in one stall period is not reading
_LAST_TURN_SECONDS = 0.5  # in which a client may ask once more that was not told to close
_LINGER_BYTES, _LINGER_SECONDS = 64 * 1024, 2.0
_LINGER_BODIES = 4  # many clients send a body to its end before they read, and never see an answer that resets them

_IDLE_SECONDS = 1.0  # after which a connection may be closed in favour of a new one
_LOOKED_AT = 64  # connections among which that is sought, so that being full costs little

_READING, _REFUSED, _LINGERING, _SWITCHED = range(4)


_Callback = TypeVar("_Callback", bound=Callable[..., None])


class _Abortable(Protocol):
    def abort(self, error: Exception) -> None: ...


def aborts_on_error(callback: _Callback) -> _Callback:
    """Wrap a callback of the event loop so that a failure ends the connection instead of leaving it as it is."""

    @wraps(callback)
    def call(self: _Abortable, *args: Any) -> None:
        try:
            callback(self, *args)
        except Exception as error:  # noqa: BLE001  # the HTTP edge: nobody above would close the connection
            self.abort(error)

    return cast(_Callback, call)


class Taker(Protocol):
    """What speaks another protocol on a connection that was HTTP's until now."""

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""

    def drain(self) -> None:
        """Begin nothing new, and end when all is done."""

    def lost(self) -> None:
        """Take note that the connection is gone."""


class GuardedProtocol(HttpToolsProtocol):
    """One client connection; inherits, because uvicorn has no other seam between socket and ASGI."""

    limits = Limits()
    refuse: Refuse = staticmethod(plain_refusal)
    draining = False

    # An instance with more than thirty attributes loses CPython's fast access to all of them, uvicorn's included.
    __slots__ = (
        "_alarm",
        "_allowance",
        "_body_end",
        "_deadline",
        "_half_closed",
        "_held",
        "_latest",
        "_paused",
        "_queue",
        "_reader",
        "_refusal",
        "_running",
        "_stage",
        "_stall_by",
        "_stall_bytes",
        "_switchable",
        "_taker",
        "_worker",
        "owed_turn",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._reader = RequestReader(self.limits, self._begin, self._wished)
        self._stage = _READING
        self._latest: Answer | None = None
        self._running: Answer | None = None
        self._queue: deque[Answer] = deque()
        self._held = bytearray()
        self._paused = False
        self.owed_turn = False  # while we drain: nobody has told this client to close
        self._refusal: ToolgateError | None = None
        self._allowance = self._stall_bytes = 0
        self._half_closed: HalfClosed | None = None
        self._switchable: Answer | None = None
        self._taker: Taker | None = None
        self._deadline = self._body_end = self._stall_by = NEVER
        self._alarm = Alarm(self.loop, self._tick)
        self._worker = Worker(self.loop, self.app, self.tasks)

    @aborts_on_error
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the clock of a connection that has said nothing yet, or turn it away when we are full."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH, low=_WRITE_LOW)
        now = self.loop.time()
        self._deadline = now + self.limits.head_seconds
        self._arm(now)
        if len(self.connections) > self.limits.connections and not self._make_room(now):
            self.fail(Overloaded("Too many connections; try again shortly.", retry_after=1), None)

    def _make_room(self, now: float) -> bool:
        """Close a connection that has been idle for a while, so that clients who only stay cannot keep others out."""
        some = (one for one in islice(self.connections, _LOOKED_AT) if isinstance(one, GuardedProtocol))
        idle = max(some, key=lambda one: one.idle_seconds(now))
        if idle.idle_seconds(now) < _IDLE_SECONDS:
            return False
        idle.transport.close()
        return True

    def idle_seconds(self, now: float) -> float:
        """Return for how long the connection has waited for a request, 0 if it does not."""
        if self._running is not None or self._stage != _READING or self._reader.phase != IDLE:
            return 0.0
        given = self.limits.head_seconds if self._latest is None else self.limits.keep_alive_seconds
        return 0.0 if self._deadline == NEVER or self.transport.is_closing() else now - (self._deadline - given)

    @aborts_on_error
    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, which need not be the one that was read last."""
        self.connections.discard(self)  # first, so that no failure below keeps its place taken
        self._alarm.off()
        self._queue.clear()
        self._held.clear()
        if self._running is not None:
            self._running.disconnect()
        if self._taker is not None:
            self._taker.lost()
        self._worker.dismiss()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn never keeps the connection
        """Keep a half-closed connection while an HTTP/1.1 client is owed an answer."""
        try:
            return self._half_close()
        except Exception as error:  # noqa: BLE001  # the HTTP edge
            self.abort(error)
            return False

    def _half_close(self) -> bool:
        running = self._running
        if running is not None and running.more_body:
            self._reject(InvalidRequest("The body ended before its announced length.", code="incomplete_body"))
            return False
        if running is None or self.scheme == "https" or running.http_version != "1.1" or self._taker is not None:
            return False
        if not self._queue and not self._held and self._refusal is None:
            running.keep_alive = False
        now = self.loop.time()
        self._half_closed = HalfClosed(self.transport, running, now)
        self._arm(now)
        return True

    def drain(self) -> None:
        """Let the request that is being answered be the connection's last, or the next if its head is gone already."""
        self._worker.dismiss()
        if self._running is not None:
            self._running.be_last()
        if self._taker is not None:
            self._taker.drain()

    def shutdown(self) -> None:
        """Close a connection that is owed nothing; one amid its headers is told why."""
        if self._running is not None:
            return
        if self._stage == _READING and self._reader.phase == HEAD:
            self.fail(Overloaded("The server is shutting down.", retry_after=1), path_of(self._reader.url))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read what is the current request's, hold what is a later one's, drop what follows a refusal."""
        try:
            if self._stage != _READING:
                self._pass_by(data)
            elif self._running is not None and self._must_hold():
                self._hold(data)
            else:
                self._read(data)
        except Exception as error:  # noqa: BLE001  # the HTTP edge
            self.abort(error)

    def _must_hold(self) -> bool:
        running = self._running
        return running is not None and (self._reader.phase != BODY or self._latest is not running)

    def _hold(self, data: bytes | memoryview) -> None:
        if self._running is not None and not self._running.keep_alive:
            return  # nothing after this answer will be read
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self._paused = True
            self.transport.pause_reading()

    def _unpause(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def _pass_by(self, data: bytes) -> None:
        if self._stage == _SWITCHED and self._taker is not None:
            self._taker.feed(data)
            return
        self._allowance -= len(data)
        if self._allowance < 0 and self._stage == _LINGERING:
            self.transport.abort()

    def _read(self, data: bytes) -> None:
        before = self._reader.phase
        try:
            if len(data) <= self.limits.head_bytes:
                self._reader.feed(data)
            else:
                self._read_slices(memoryview(data), self.limits.head_bytes)
        except ToolgateError as error:
            self._reject(error)
        else:
            if self._running is not None and self._reader.phase == IDLE:
                self._deadline = NEVER  # the client has done its part
            else:
                self._set_deadline(before)

    def _read_slices(self, data: memoryview, size: int) -> None:
        """Feed no more at a time than a head may have, so that none outgrows its limit inside the parser."""
        for start in range(0, len(data), size):
            if self._must_hold():
                self._hold(data[start:])
                return
            self._reader.feed(data[start : start + size])

    def _begin(self, version: str, waits: bool, goes_on: bool) -> Answer:
        self.owed_turn = False
        answer = self._latest = Answer(self, self._scope(version), waits, goes_on and not self.draining)
        if self._running is None:
            self._run(answer)
        elif len(self._queue) < self.limits.pipelined:
            self._queue.append(answer)
        else:
            raise InvalidRequest("Too many requests were sent ahead of their turn.", code="too_many_pipelined")
        return answer

    def _run(self, answer: Answer) -> None:
        self._running = answer
        self._worker.run(answer)

    def _scope(self, version: str) -> HTTPScope:
        path, raw_path, query = target_of(self._reader.url)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self._reader.method.decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._reader.headers,
            "state": self.app_state.copy(),
        }

    def _wished(self) -> None:
        self._switchable = self._latest

    def may_switch(self, answer: Answer) -> bool:
        """Say whether the client offered to speak WebSocket instead of getting this answer."""
        return answer is self._switchable and answer is self._running and self._stage == _READING

    def message_bytes(self) -> int:
        """Return how large a message may be: as large as a body of the request that was read last."""
        return body_limit(self._reader.url, self.limits)

    def switch(self, answer: Answer, head: bytes, taker: Taker) -> None:
        """Send the head and let `taker` have what arrives from now on; `answer` lasts as long as the connection."""
        answer.started, answer.keep_alive = True, False
        self._stage, self._taker = _SWITCHED, taker
        self._queue.clear()
        self.transport.write(head)
        held = bytes(self._held)
        self._held.clear()
        self._unpause()
        if held:
            taker.feed(held)

    def hang_up(self) -> None:
        """Close, after the client had time to read what was sent last, though it may still be sending."""
        if not self.transport.is_closing():
            self._linger(_LINGER_BODIES * self.limits.body_bytes)

    @aborts_on_error
    def answered(self, answer: Answer) -> None:
        """Take up the next request, or wait for one, or close."""
        self.server_state.total_requests += 1
        self._running = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not answer.keep_alive:
            self._close()
        elif self._queue or self._held or self._half_closed or self._reader.phase != IDLE or self._stage != _READING:
            self._take_next()
        else:
            self.owed_turn = self.draining
            seconds = _LAST_TURN_SECONDS if self.draining else self.limits.keep_alive_seconds
            self._deadline = self.loop.time() + seconds
            self._alarm.by(self._deadline)

    def _close(self) -> None:
        if self._reader.phase == BODY:
            self._linger(_LINGER_BODIES * self.limits.body_bytes)
        elif self._stage != _LINGERING:
            self.transport.close()

    def _take_next(self) -> None:
        before = BODY if self._reader.phase == BODY else IDLE
        if self._queue:
            self._run(self._queue.popleft())
            before = IDLE
        if self._held and self._stage == _READING and not self._must_hold():
            data = bytes(self._held)
            self._held.clear()
            self._unpause()
            self._read(data)
        if self._running is None and self._refusal is not None:
            self.fail(self._refusal, path_of(self._reader.url))
        elif self._running is None and self._half_closed:
            self.transport.close()
        elif self._stage == _READING:
            self._set_deadline(before)

    def _reject(self, error: ToolgateError) -> None:
        """Refuse the request that is being read, after those that came before it have been answered."""
        running = self._running
        if running is not None and not running.more_body:
            if self._queue and self._queue[-1].more_body:
                self._queue.pop()
            self._stage, self._refusal, self._deadline = _REFUSED, error, NEVER
        elif running is not None and running.started:
            self.transport.abort()
        elif running is None and self._reader.phase == BODY:
            self._close()  # it was answered before it was read
        else:
            if running is not None:
                running.disconnect()
            self.fail(error, path_of(self._reader.url))

    @aborts_on_error
    def fail(self, error: ToolgateError, path: str | None) -> None:
        """Answer with a refusal and close; never raises, for there is no other way left to end the connection."""
        self._running = None
        self._queue.clear()
        if self.transport.is_closing() or self._stage == _LINGERING:
            return
        try:
            status, body = self.refuse(path, error)
        except Exception as failure:  # the application's words are missing, not the answer
            self.logger.error("A refusal could not be worded for its path", exc_info=failure)
            status, body = plain_refusal(path, error)
        self.transport.write(encode_refusal(status, body, error.retry_after, self.server_state.default_headers))
        if status == 408:
            self.transport.close()  # it is not sending
        else:
            self._linger(_LINGER_BODIES * self.limits.body_bytes if status in (413, 415) else _LINGER_BYTES)

    def abort(self, error: Exception) -> None:
        """Log the failure of a callback and end the connection; what runs on it is told when it is lost."""
        self.logger.error("A connection failed and was closed", exc_info=error)
        if self.transport is not None:
            self.transport.abort()

    def _linger(self, allowance: int) -> None:
        self._stage, self._allowance = _LINGERING, allowance
        self.flow.resume_reading()
        self._unpause()
        now = self.loop.time()
        self._deadline = now + _LINGER_SECONDS
        self._arm(now)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        with contextlib.suppress(OSError):  # it may be gone already
            self.transport.write_eof()

    @aborts_on_error
    def pause_writing(self) -> None:
        """Start the clock of a client that leaves our buffer full."""
        super().pause_writing()
        now = self.loop.time()
        self._watch_buffer(now)
        self._arm(now)

    @aborts_on_error
    def resume_writing(self) -> None:
        """Stop that clock."""
        super().resume_writing()
        self._stall_by = NEVER

    def _watch_buffer(self, now: float) -> None:
        self._stall_bytes = self.transport.get_write_buffer_size()
        self._stall_by = now + self.limits.write_stall_seconds

    def _set_deadline(self, before: int) -> None:
        """Give the client its time for what it has begun; more bytes of a head do not buy more time."""
        now, limits, phase = self.loop.time(), self.limits, self._reader.phase
        if self._must_hold():
            self._deadline = NEVER
        elif phase == BODY:
            if before != BODY:
                self._body_end = now + limits.body_seconds
            self._deadline = min(now + limits.body_idle_seconds, self._body_end)
        elif phase == IDLE and before == BODY:
            self._deadline = now + limits.keep_alive_seconds
        elif phase == HEAD != before and self._latest is not None:
            self._deadline = now + limits.head_seconds
        self._arm(now)

    def _arm(self, now: float) -> None:
        """Wake up for whatever is due first, and often enough to find a closing that got stuck."""
        look = EVERY if self._half_closed is not None else self.limits.write_stall_seconds
        self._alarm.by(min(self._deadline, self._stall_by, now + look))

    def _tick(self) -> None:
        now = self.loop.time()
        try:
            self._look(now)
        except Exception as error:  # noqa: BLE001  # the HTTP edge
            self.abort(error)
        self._arm(now)

    def _look(self, now: float) -> None:
        """Do what is due by now."""
        if self._stall_by == NEVER and self.transport.is_closing():
            self._watch_buffer(now)
        if self._half_closed is not None and self._half_closed.gone(self._running, now):
            self.transport.abort()
        elif now >= self._stall_by:
            self._judge_stall(now)
        elif now >= self._deadline:
            self._expire(now)
        elif self._is_forgotten():
            self.logger.error("Closed a connection that nothing would have ended")
            self.transport.close()

    def _is_forgotten(self) -> bool:
        """Return whether the connection has no deadline though no task is left that could answer on it."""
        if self._deadline != NEVER or self.transport.is_closing():
            return False
        running = self._running
        return running is None or running.complete or (running.task is not None and running.task.done())

    def _expire(self, now: float) -> None:
        self._deadline = NEVER
        if self._stage == _LINGERING and not self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._stage == _LINGERING or self._reader.phase == IDLE:
            self.transport.close()
        elif self._reader.phase == BODY and self.flow.read_paused:
            self._deadline = now + self.limits.body_idle_seconds  # we are the slow side
            self._body_end = now + self.limits.body_seconds
        else:
            part = "headers" if self._reader.phase == HEAD else "body"
            self._reject(InvalidRequest(f"The {part} took too long to arrive.", status=408, code="request_timeout"))

    def _judge_stall(self, now: float) -> None:
        before = self._stall_bytes
        self._watch_buffer(now)
        if before - self._stall_bytes < _STALL_BYTES:
            self.logger.info("Dropped a client that stopped reading")
            self.transport.abort()


def guarded(limits: Limits, refuse: Refuse = plain_refusal) -> type[GuardedProtocol]:
    """Return the protocol with these limits, as a class of its own because uvicorn takes a class."""
    own = {"limits": limits, "refuse": staticmethod(refuse), "draining": False, "__slots__": ()}
    return type("Guarded", (GuardedProtocol,), own)
