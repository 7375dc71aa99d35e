"""The HTTP edge below ASGI: how much a client may send, how long it may take, and in which turn it is answered.

uvicorn with httptools takes headers without end, never closes a silent socket, takes a half-close for a departure and
adds trailers to the request's headers.  This protocol is uvicorn's own with those gaps closed.  Refusals are worded by
`refuse`, because only the caller knows which dialect a path speaks.

It knows bytes, sockets and clocks.  It must not know dialects, keys or models.

A message passes `_IDLE → _HEAD → _BODY → _IDLE`.  A connection that broke a rule goes to `_REFUSED` while earlier requests
are still being answered, then to `_LINGER`, where what arrives is thrown away until the client has read its refusal.

Every request passes here, so: bytes are counted once per read, and a connection owns one timer, which is moved only when
something falls due earlier than it would fire.  A deadline that is met costs an assignment.
"""

import asyncio
import contextlib
import select
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from toolgate.conversation.errors import InvalidRequest, Overloaded, ToolgateError
from toolgate.server.answer import CONTINUE, Answer
from toolgate.server.head import (
    WATCHED,
    Headers,
    Limits,
    body_too_large,
    head_too_large,
    path_of,
    size_of,
    target_of,
    terms,
    too_many_headers,
    url_too_long,
)

Refuse = Callable[[str | None, ToolgateError], tuple[int, bytes]]

_IDLE, _HEAD, _BODY, _REFUSED, _LINGER = range(5)
_NEVER = float("inf")

_WRITE_HIGH, _WRITE_LOW = 64 * 1024, 16 * 1024
_HELD_BYTES = 64 * 1024  # of requests sent ahead of their turn
_STALL_BYTES = 16 * 1024  # a client that takes fewer in one stall period is not reading
_LINGER_BYTES, _LINGER_SECONDS = 64 * 1024, 2.0
_LINGER_BODIES = 4  # many clients send a body to its end before they read, and never see an answer that resets them
_PROBE_AFTER, _PROBE_EVERY = 0.4, 0.1


def plain_refusal(path: str | None, error: ToolgateError) -> tuple[int, bytes]:
    """Word a refusal as OpenAI's API does, for want of knowing better."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return error.status, msgspec.json.encode({"error": said})


class GuardedProtocol(HttpToolsProtocol):
    """One client connection; inherits, because uvicorn has no other seam between socket and ASGI."""

    limits = Limits()
    refuse: Refuse = staticmethod(plain_refusal)
    draining = False

    # An instance with more than thirty attributes loses CPython's fast access to all of them, uvicorn's included.
    __slots__ = (
        "_allowance",
        "_barren_bytes",
        "_body_bytes",
        "_body_end",
        "_body_limit",
        "_deadline",
        "_half_closed",
        "_head_bytes",
        "_held",
        "_owed",
        "_paused",
        "_phase",
        "_probe_at",
        "_queue",
        "_reading",
        "_refusal",
        "_reparse",
        "_running",
        "_stall_by",
        "_stall_bytes",
        "_tick_at",
        "_timer",
        "_watched",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._phase = _IDLE
        self._watched: Headers = []
        self._head_bytes = self._body_bytes = self._barren_bytes = self._body_limit = 0
        self._reparse = False
        self._reading: Answer | None = None
        self._running: Answer | None = None
        self._queue: deque[Answer] = deque()
        self._held = bytearray()
        self._paused = False
        self._refusal: ToolgateError | None = None
        self._allowance = 0
        self._half_closed = False
        self._owed: tuple[Answer, bool] | None = None
        self._stall_bytes = 0
        self._deadline = self._body_end = self._stall_by = self._probe_at = self._tick_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the clock of a connection that has said nothing yet, or turn it away when we are full."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH, low=_WRITE_LOW)
        now = self.loop.time()
        self._deadline = now + self.limits.head_seconds
        self._arm(now)
        if len(self.connections) > self.limits.connections:
            self.fail(Overloaded("Too many connections; try again shortly.", retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, which need not be the one that was read last."""
        self._disarm()
        self._queue.clear()
        self._held.clear()
        if self._running is not None:
            self._running.disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn never keeps the connection
        """Keep a half-closed connection while an HTTP/1.1 client is owed an answer.

        A client that left altogether sends the same FIN.  The two differ once we send something: one that left resets
        the connection.  Most answers come soon enough to tell; otherwise `_probe` sends bytes without meaning.
        """
        running = self._running
        if running is not None and running.more_body:
            self._reject(InvalidRequest("The body ended before its announced length.", code="incomplete_body"))
            return False
        if running is None or self.scheme == "https" or running.scope["http_version"] != "1.1":
            return False
        if not self._queue and not self._held:
            running.keep_alive = False
        now = self.loop.time()
        self._half_closed = True
        self._owed = (running, running.started)
        self._probe_at = now + _PROBE_AFTER
        self._arm(now)
        return True

    def drain(self) -> None:
        """Let the request that is being answered be the connection's last."""
        if self._running is not None:
            self._running.keep_alive = False

    def shutdown(self) -> None:
        """Close a connection that is owed nothing; one amid its headers is told why."""
        if self._running is not None:
            return
        if self._phase == _HEAD:
            self.fail(Overloaded("The server is shutting down.", retry_after=1))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what is the current request's, hold what is a later one's, drop what follows a refusal."""
        if self._phase >= _REFUSED:
            self._discard(len(data))
        elif self._running is not None and self._must_hold():
            self._hold(data)
        else:
            self._parse(data)

    def _must_hold(self) -> bool:
        running = self._running
        return running is not None and (self._phase != _BODY or self._reading is not running)

    def _hold(self, data: bytes | memoryview) -> None:
        if self._running is not None and not self._running.keep_alive:
            return  # nothing after this answer will be read
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self._paused = True
            self.transport.pause_reading()

    def _discard(self, size: int) -> None:
        self._allowance -= size
        if self._allowance < 0 and self._phase == _LINGER:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        before, size = self._phase, self.limits.head_bytes
        if len(data) <= size:
            self._feed(data)
        else:
            self._feed_slices(memoryview(data), size)
        if self._phase == _IDLE and self._running is not None:
            self._deadline = _NEVER  # the client has done its part
        else:
            self._set_deadline(before)

    def _feed_slices(self, data: memoryview, size: int) -> None:
        """Feed no more at a time than a head may have, so that none outgrows its limit inside the parser."""
        for start in range(0, len(data), size):
            if self._must_hold():
                self._hold(data[start:])
                return
            self._feed(data[start : start + size])
            if self._phase >= _REFUSED:
                return

    def _feed(self, data: bytes | memoryview) -> None:
        before, body_bytes = self._phase, self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError as broken:
            self._reject(self._why(broken))
        else:
            if before == _BODY == self._phase:
                self._count_barren(len(data), self._body_bytes != body_bytes)
            elif self._phase == _HEAD or self._running is None:
                self._count_head(len(data), before)

    def _why(self, broken: httptools.HttpParserError) -> ToolgateError:
        cause = broken.__context__
        if isinstance(cause, ToolgateError):
            return cause
        if cause is not None and not isinstance(cause, httptools.HttpParserError | UnicodeError):
            self.logger.error("A request could not be read", exc_info=cause)
        return InvalidRequest(f"Malformed HTTP request: {broken}.", code="malformed_request")

    def _count_head(self, size: int, before: int) -> None:
        """Count a head that is not complete; its first read counts only when nothing else was in it."""
        if before == _HEAD or self._phase == _IDLE:
            self._head_bytes += size
        else:
            self._head_bytes = size if before == _IDLE and self._running is None else 0
        if self._head_bytes > self.limits.head_bytes:
            self._reject(head_too_large(self.limits.head_bytes))
        elif self._phase == _HEAD and len(self.headers) > self.limits.headers:
            self._reject(too_many_headers(self.limits.headers))

    def _count_barren(self, size: int, progress: bool) -> None:
        """Bound what is neither head nor body: chunk extensions, and trailers, which the parser would collect."""
        self._barren_bytes = 0 if progress else self._barren_bytes + size
        if self._barren_bytes > self.limits.head_bytes:
            self._reject(head_too_large(self.limits.head_bytes))

    def on_message_begin(self) -> None:
        """Start a request of which nothing is known yet."""
        self._phase = _HEAD
        self.url = b""
        self.headers = []
        self._watched = []

    def on_url(self, url: bytes) -> None:
        """Collect the target, up to its limit."""
        self.url += url
        if len(self.url) > self.limits.url_bytes:
            raise url_too_long(self.limits.url_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, and remember it apart when it decides how the request is read."""
        name = name.lower()
        self.headers.append((name, value))
        if name in WATCHED:
            self._watched.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request, or queue it, once it is clear where it ends and that it is not too large."""
        parser, limits = self.parser, self.limits
        if parser.should_upgrade() and self._upgrades():
            return
        if len(self.headers) > limits.headers:
            raise too_many_headers(limits.headers)
        if self._head_bytes and size_of(self.url, self.headers) > limits.head_bytes:
            raise head_too_large(limits.head_bytes)
        version = parser.get_http_version()
        self._body_limit, waits = terms(version, self.url, self._watched, limits)
        self._body_bytes = self._barren_bytes = 0
        self._set_scope(version)
        # Whether a body follows a final answer that came before "100 Continue" is the client's choice: then close.
        keep_alive = version == "1.1" and parser.should_keep_alive() and not self.draining and not waits
        self._begin(Answer(self, self.scope, waits, keep_alive))
        self._phase = _BODY
        self.headers = []  # trailers come here, not into the request that is already running

    def _set_scope(self, version: str) -> None:
        raw_path, query = target_of(self.url)
        path = raw_path.decode("ascii")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def _begin(self, answer: Answer) -> None:
        self._reading = answer
        if self._running is None:
            self._run(answer)
        elif len(self._queue) < self.limits.pipelined:
            self._queue.append(answer)
        else:
            raise InvalidRequest("Too many requests were sent ahead of their turn.", code="too_many_pipelined")

    def _run(self, answer: Answer) -> None:
        self._running = answer
        task = self.loop.create_task(answer.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """Pass a piece on unless it is one too many."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            raise body_too_large(self._body_limit)
        if self._reading is not None:
            self._reading.feed(body)

    def on_message_complete(self) -> None:
        """Tell the application that it has everything."""
        if self._reparse or self._reading is None:
            return
        self._phase = _IDLE
        self._head_bytes = 0
        self._reading.feed_end()

    def _upgrades(self) -> bool:
        """Say whether this head ends here, to go on as something else or to be read again without the wish."""
        if self.parser.get_method() == b"CONNECT":
            raise InvalidRequest("CONNECT is not served here.", status=405, code="method_not_allowed")
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self._watched)
        self._reparse = has_body or not self._should_upgrade()
        if not self._reparse:
            terms(self.parser.get_http_version(), self.url, self._watched, self.limits)
            self._set_scope("1.1")
        return True

    def _upgrade(self, rest: bytes) -> None:
        if not self._reparse:
            self._disarm()
            self.handle_websocket_upgrade()
            return
        # The parser skips the body of any request that wishes for an upgrade and would read it as the next request.
        # A server may ignore the wish, so the same request is read again without it.
        self._reparse = False
        head = self._head_without_upgrade()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._phase = _IDLE
        self._feed(head)
        if rest and self._phase < _REFUSED:
            self._feed(rest)

    def _head_without_upgrade(self) -> bytes:
        parser, gone = self.parser, (b"upgrade", b"connection", b"http2-settings")
        kept = [header for header in self.headers if header[0] not in gone]
        if not parser.should_keep_alive():
            kept.append((b"connection", b"close"))
        line = b"%s %s HTTP/%s\r\n" % (parser.get_method(), self.url, parser.get_http_version().encode())
        return line + b"".join(b"%s: %s\r\n" % header for header in kept) + b"\r\n"

    def answered(self, answer: Answer) -> None:
        """Take up the next request, or wait for one, or close."""
        self.server_state.total_requests += 1
        self._running = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not answer.keep_alive:
            self._close()
        elif self._phase != _IDLE or self._queue or self._held or self._half_closed:
            self._take_next()
        else:
            now = self.loop.time()
            self._deadline = now + self.limits.keep_alive_seconds
            if self._deadline < self._tick_at:
                self._arm(now)

    def _close(self) -> None:
        if self._phase == _BODY:
            self._linger(_LINGER_BODIES * self.limits.body_bytes)
        else:
            self.transport.close()

    def _take_next(self) -> None:
        before = _BODY if self._phase == _BODY else _IDLE
        if self._queue:
            self._run(self._queue.popleft())
            before = _IDLE
        if self._held and self._phase < _REFUSED and not self._must_hold():
            self._release()
        if self._running is None and self._refusal is not None:
            self.fail(self._refusal)
        elif self._running is None and self._half_closed:
            self.transport.close()
        else:
            self._set_deadline(before)

    def _release(self) -> None:
        data = bytes(self._held)
        self._held.clear()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        self._parse(data)

    def _reject(self, error: ToolgateError) -> None:
        """Refuse the message that is being read, after those that came before it have been answered."""
        running = self._running
        if running is not None and not running.more_body:
            if self._queue and self._queue[-1].more_body:
                self._queue.pop()
            self._refusal = error
            self._phase = _REFUSED
            self._deadline = _NEVER
        elif running is not None and running.started:
            self._phase = _LINGER
            self.transport.abort()
        else:
            if running is not None:
                running.disconnect()
            self.fail(error)

    def fail(self, error: ToolgateError) -> None:
        """Answer with a refusal and close."""
        self._running = None
        self._queue.clear()
        if self.transport.is_closing():
            return
        status, body = self.refuse(path_of(self.url), error)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", b"req_" + uuid.uuid4().hex.encode()),
            (b"connection", b"close"),
        ]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        head = STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(head + b"\r\n" + body)
        if status == 408:
            self.transport.close()  # it is not sending
        else:
            self._linger(_LINGER_BODIES * self.limits.body_bytes if status in (413, 415) else _LINGER_BYTES)

    def _linger(self, allowance: int) -> None:
        self._phase = _LINGER
        self._allowance = allowance
        self.flow.resume_reading()
        now = self.loop.time()
        self._deadline = now + _LINGER_SECONDS
        self._arm(now)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        with contextlib.suppress(OSError):  # it may be gone already
            self.transport.write_eof()

    def pause_writing(self) -> None:
        """Start the clock of a client that leaves our buffer full."""
        super().pause_writing()
        now = self.loop.time()
        self._stall_bytes = self.transport.get_write_buffer_size()
        self._stall_by = now + self.limits.write_stall_seconds
        self._arm(now)

    def resume_writing(self) -> None:
        """Stop that clock."""
        super().resume_writing()
        self._stall_by = _NEVER

    def _set_deadline(self, before: int) -> None:
        """Give the client its time for what it has begun; more bytes of a head do not buy more time."""
        now, limits = self.loop.time(), self.limits
        if self._phase >= _REFUSED:
            return
        if self._must_hold():
            self._deadline = _NEVER
        elif self._phase == _BODY:
            if before != _BODY:
                self._body_end = now + limits.body_seconds
            self._deadline = min(now + limits.body_idle_seconds, self._body_end)
        elif self._phase == _IDLE:
            if before == _BODY:
                self._deadline = now + limits.keep_alive_seconds
        elif before != _HEAD and self._reading is not None:
            self._deadline = now + limits.head_seconds
        self._arm(now)

    def _arm(self, now: float) -> None:
        """Make sure that the timer fires by the earliest thing due."""
        # It never sleeps longer than this, for nobody else finds a connection whose closing got stuck.
        due = min(self._deadline, self._stall_by, self._probe_at, now + self.limits.write_stall_seconds)
        if self._half_closed:
            due = min(due, now + _PROBE_EVERY)
        if due >= self._tick_at:
            return
        self._disarm()
        self._tick_at = due
        self._timer = self.loop.call_at(due, self._tick)

    def _disarm(self) -> None:
        self._tick_at = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self.loop.time()
        self._timer, self._tick_at = None, _NEVER
        if self.transport.is_closing() and self._phase != _LINGER:
            self._phase = _LINGER
            self._deadline = now + self.limits.write_stall_seconds
        if self._half_closed and self._peer_gone():
            self.transport.abort()
        elif now >= self._stall_by:
            self._judge_stall(now)
        elif now >= self._deadline:
            self._expire(now)
        if now >= self._probe_at:
            self._probe()
        self._arm(now)

    def _expire(self, now: float) -> None:
        if self._phase == _LINGER:
            self._deadline = _NEVER
            self.transport.abort()
        elif self._phase == _IDLE:
            self._deadline = now + self.limits.write_stall_seconds
            self.transport.close()
        elif self._phase == _BODY and self.flow.read_paused:
            self._deadline = now + self.limits.body_idle_seconds  # we are the slow side
            self._body_end = now + self.limits.body_seconds
        else:
            part = "headers" if self._phase == _HEAD else "body"
            self._reject(InvalidRequest(f"The {part} took too long to arrive.", status=408, code="request_timeout"))

    def _judge_stall(self, now: float) -> None:
        left = self.transport.get_write_buffer_size()
        if self._stall_bytes - left < _STALL_BYTES:
            self._stall_by = _NEVER
            self.logger.info("Dropped a client that stopped reading")
            self.transport.abort()
            return
        self._stall_bytes = left
        self._stall_by = now + self.limits.write_stall_seconds

    def _peer_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        return bool(poll.poll(0))

    def _probe(self) -> None:
        """Send what means nothing to a client that listens, and makes one that left reset the connection."""
        self._probe_at = _NEVER
        running = self._running
        if running is None or self._owed != (running, running.started) or self.transport.is_closing():
            return  # the answer itself has been the probe
        if not running.started:
            self.transport.write(CONTINUE)
        elif running.chunked:
            self.transport.write(b"0")  # a leading zero of the next chunk's size


def guarded(limits: Limits, refuse: Refuse = plain_refusal) -> type[GuardedProtocol]:
    """Return the protocol with these limits, as a class of its own because uvicorn takes a class."""
    own = {"limits": limits, "refuse": staticmethod(refuse), "draining": False, "__slots__": ()}
    return type("Guarded", (GuardedProtocol,), own)
