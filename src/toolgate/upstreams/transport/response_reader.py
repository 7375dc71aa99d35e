"""Collect one response as it arrives: the parser calls it, and one caller waits for it. Knows no socket."""

import asyncio
from functools import lru_cache
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from toolgate.upstreams.transport.limits import UpstreamTimeouts, size

# A peer that closed a pooled connection before our request reached it shows that within a round trip.
# One that closes later may have worked on the request meanwhile, so that repeating it would not be safe.
STALE_WITHIN = 2.0
# Names of headers that are kept in lower case; upstreams send the same few dozen with every response.
_KNOWN_NAMES = 256
# The parser refuses more than 64 bits, and takes zeros in front without end, for which `int` fails after 4300 digits.
_LENGTH_DIGITS = 32


class StaleConnection(UpstreamUnavailable):
    """The peer had already closed a reused connection: the request may be sent again on a new one."""


class ResponseConnection(Protocol):
    """The connection that a response comes from."""

    loop: asyncio.AbstractEventLoop
    upstream: str

    def watch(self, deadline: float) -> None:
        """Check the deadlines at this time at the latest."""

    def resume(self) -> None:
        """Read from the socket again: the caller took what had arrived."""

    def end(self, error: UpstreamError | None) -> None:
        """End the response; unless it is complete, close the socket at once."""


class _ProtocolError(Exception):
    """Stops the parser in a callback; its text ends the error message."""


class ResponseReader:
    """Status, headers and body of one response; `connection` is set as long as more may arrive.

    `feed` to `settle` are for the connection, `on_…` for the parser, `take` to `abandon` for the caller.
    """

    __slots__ = (
        "_began",
        "_empty_bytes",
        "_head_cap",
        "_head_only",
        "_parser",
        "_pieces",
        "_sent_at",
        "_stall_at",
        "_timeouts",
        "_total_at",
        "_until_close",
        "_waiter",
        "buffered",
        "complete",
        "connection",
        "error",
        "headed",
        "headers",
        "keep_alive",
        "size",
        "status",
        "upstream",
    )

    def __init__(
        self,
        connection: ResponseConnection,
        timeouts: UpstreamTimeouts,
        total_at: float,
        head_cap: int,
        head_only: bool,
    ) -> None:
        self.connection: ResponseConnection | None = connection
        self.upstream = connection.upstream
        self.status = 0
        self.headers: dict[str, str] = {}
        self.headed = self.complete = self.keep_alive = False
        self.error: UpstreamError | None = None
        self.size = self.buffered = 0
        self._pieces: list[bytes] = []
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._head_cap, self._head_only = head_cap, head_only
        self._empty_bytes = 0
        self._began = self._until_close = False
        self._waiter: asyncio.Future[None] | None = None
        self._timeouts, self._total_at = timeouts, total_at
        self._sent_at = connection.loop.time()
        self._stall_at = self._sent_at + timeouts.first_byte

    def feed(self, piece: bytes) -> InvalidUpstreamAnswer | None:
        """Parse bytes of the socket; return the fault with which the connection has to end, if any."""
        assert self._parser is not None  # a settled response has no connection that could feed it
        room = self._head_cap - self._empty_bytes
        if len(piece) > room and not self.headed:
            # No more at a time than a head may have, so that none outgrows its limit inside the parser.
            fault = self.feed(piece[:room]) if room else None
            if fault is None and not self.headed:
                fault = self._too_much()
            if fault is not None:
                return fault
            piece = piece[room:]
        before, headed = self.size, self.headed
        self._began = True
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade) as broken:
            # Garbage behind a complete response does not harm it, but no other may follow on this connection.
            if not self.complete:
                # An exception of a callback reaches us as the context of the parser's own.
                reason: object = broken.__context__
                if isinstance(broken, HttpParserUpgrade):
                    reason = "switched protocols, which was not requested"
                elif not isinstance(reason, _ProtocolError):
                    reason = f"does not speak HTTP/1.1 as it should: {broken}"
                return InvalidUpstreamAnswer(f"{self.upstream} {reason}")
            self.keep_alive = False
        # Once for all that this read brought, and not in the callbacks: a waiter that wakes costs a turn of the loop.
        if self._waiter is not None and (self.size != before or self.headed != headed or self.complete):
            self._wake()
        if self.size != before or self.complete:
            self._empty_bytes = 0
            return None
        # Endless headers, interim responses, chunk extensions and trailers carry no content and need a limit of their own.
        self._empty_bytes += len(piece)
        return self._too_much() if self._empty_bytes > self._head_cap else None

    def lost(self, clean: bool, reused: bool) -> UpstreamError | None:
        """Return the fault of a lost connection; None where the end of the connection is the end of the body."""
        # Without content-length and chunks, the end of the connection ends the body (RFC 9112, 6.3).
        if self.headed and self._until_close and clean:
            self.complete = True
            return None
        if self._began:
            return InvalidUpstreamAnswer(f"{self.upstream} closed the connection in the middle of its answer")
        quick = self.connection is not None and self.connection.loop.time() - self._sent_at < STALE_WITHIN
        message = f"{self.upstream} closed the connection without an answer"
        if reused and quick:
            return StaleConnection(message)
        return UpstreamUnavailable(message, code="upstream_closed")

    def overdue(self, now: float) -> UpstreamTimeout | None:
        """Return the fault of a limit that has passed; while the caller does not wait, only the total counts."""
        limits = self._timeouts
        if now >= self._total_at:
            return UpstreamTimeout(f"{self.upstream} did not finish within {limits.total:g} s (limit: total)")
        if self._waiter is None or now < self._stall_at:
            return None
        if self.size:
            return UpstreamTimeout(f"{self.upstream} fell silent for {limits.idle:g} s in mid-answer (limit: idle)")
        return UpstreamTimeout(f"{self.upstream} sent nothing for {limits.first_byte:g} s (limit: first_byte)")

    def check_at(self, now: float) -> float:
        """Return when to check the deadlines again."""
        stall_at = now + self._timeouts.idle if self._waiter is None else self._stall_at
        return min(stall_at, self._total_at)

    def settle(self, error: UpstreamError | None) -> None:
        """Detach from the connection: nothing more will arrive."""
        self.error = error
        self.connection = self._parser = None
        if self._waiter is not None:
            self._wake()

    def on_message_begin(self) -> None:
        # Interim responses (status 100 to 199) may come before the final one, and nothing may come after it.
        if self.headed:
            raise _ProtocolError("sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headed:  # a trailer: no dialect uses one
            return
        key, text, headers = _known_name(name), value.decode("latin-1"), self.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None  # it is the caller
        status = parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _ProtocolError(f"answered with the status {status}, which was not requested")
            self.headers.clear()  # those of an interim response do not belong to the final one
            return
        coding = self.headers.get("transfer-encoding")
        # The parser undoes chunks alone: a body in `gzip, chunked` would be passed on compressed.
        if coding is not None and coding.lower() != "chunked":
            raise _ProtocolError("used a transfer-encoding other than chunked")
        length = self.headers.get("content-length")
        if length is not None and len(length) > _LENGTH_DIGITS:
            raise _ProtocolError(f"sent a content-length of more than {_LENGTH_DIGITS} characters")
        self.status, self.headed = status, True
        self.keep_alive = parser.should_keep_alive()
        self._until_close = coding is None and length is None
        self.complete = self._head_only  # a response to HEAD has no body, whatever its content-length

    def on_body(self, piece: bytes) -> None:
        if self.complete:
            raise _ProtocolError("sent more than its answer")
        self._pieces.append(piece)
        size = len(piece)
        self.size += size
        self.buffered += size

    def on_message_complete(self) -> None:
        self.complete = self.headed

    def take(self) -> bytes:
        """Return the part of the body that has arrived, as one piece; empty if there is none."""
        pieces = self._pieces
        if not pieces:
            return b""
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.buffered = 0
        if self.connection is not None:
            self.connection.resume()
        return whole

    async def arrival(self) -> None:
        """Wait for the head, a piece, the end or a fault; a wait that is cancelled closes the socket at once."""
        connection = self.connection
        if connection is None:
            return
        if self._waiter is not None:
            raise RuntimeError("a response has one reader at a time")
        self._waiter = waiter = connection.loop.create_future()
        # Before the head, `_stall_at` stays at the time of the request plus `first_byte`.
        if self.headed:
            idle_at = connection.loop.time() + self._timeouts.idle
            self._stall_at = idle_at if self.size else max(idle_at, self._sent_at + self._timeouts.first_byte)
        connection.watch(min(self._stall_at, self._total_at))
        try:
            await waiter
        except BaseException:
            self.abandon()
            raise
        finally:
            self._waiter = None

    def abandon(self) -> None:
        """Give the response up: the socket is closed at once, unless all of it has arrived."""
        if self.connection is not None:
            self.connection.end(InvalidUpstreamAnswer(f"the answer of {self.upstream} was given up before its end"))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _too_much(self) -> InvalidUpstreamAnswer:
        return InvalidUpstreamAnswer(f"{self.upstream} sent more than {size(self._head_cap)} of headers or framing")


@lru_cache(maxsize=_KNOWN_NAMES)
def _known_name(name: bytes) -> str:
    return name.decode("latin-1").lower()
