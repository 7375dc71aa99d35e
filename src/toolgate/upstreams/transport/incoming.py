"""One answer as it arrives: the parser calls it from one side, one reader waits on the other. Knows no socket."""

import asyncio
from functools import lru_cache
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolgate.conversation.errors import Garbled, TimedOut, Unavailable, UpstreamFault
from toolgate.upstreams.transport.limits import Timeouts, size

# A peer that closed a pooled connection before our request reached it shows that within a round trip.
# One that closes later may have worked on the request meanwhile, so asking again would not be safe.
STALE_WITHIN = 2.0
_KNOWN_NAMES = 256


class Stale(Unavailable):
    """A reused connection was already closed by the peer: the request may be sent again on a fresh one."""


class Line(Protocol):
    """What an answer needs of the connection that it comes from."""

    loop: asyncio.AbstractEventLoop
    upstream: str

    def watch(self, deadline: float) -> None:
        """Look at the deadlines no later than this."""

    def resume(self) -> None:
        """Let more bytes in: the reader took what there was."""

    def end(self, error: UpstreamFault | None) -> None:
        """Let go of the answer; unless it is complete, close the socket at once."""


class _Unwanted(Exception):
    """Stops the parser in the middle of a callback; the words end in the error's message."""


class Incoming:
    """Status, headers and body of one answer; `line` is its connection for as long as more may come.

    `feed` to `settle` are for the connection, `on_…` for the parser, `take` to `abandon` for the reader.
    """

    __slots__ = (
        "_barren",
        "_head_cap",
        "_head_only",
        "_head_size",
        "_heard",
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
        "error",
        "headed",
        "headers",
        "keep_alive",
        "line",
        "size",
        "status",
        "upstream",
    )

    def __init__(self, line: Line, timeouts: Timeouts, total_at: float, head_cap: int, head_only: bool) -> None:
        self.line: Line | None = line
        self.upstream = line.upstream
        self.status = 0
        self.headers: dict[str, str] = {}
        self.headed = self.complete = self.keep_alive = False
        self.error: UpstreamFault | None = None
        self.size = self.buffered = 0
        self._pieces: list[bytes] = []
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._head_cap, self._head_only = head_cap, head_only
        self._head_size = self._barren = 0
        self._heard = self._until_close = False
        self._waiter: asyncio.Future[None] | None = None
        self._timeouts, self._total_at = timeouts, total_at
        self._sent_at = line.loop.time()
        self._stall_at = self._sent_at + timeouts.first_byte

    def feed(self, piece: bytes) -> Garbled | None:
        """Take bytes from the socket; a fault is returned for the connection to end with."""
        assert self._parser is not None  # a settled answer has no connection that could feed it
        before, headed = self.size, self.headed
        self._heard = True
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade) as broken:
            if not self.complete:
                return Garbled(f"{self.upstream} {_words(broken)}")
            self.keep_alive = False
        if self._waiter is not None and (self.size != before or self.headed != headed or self.complete):
            self._wake()
        if self.size != before or self.complete:
            self._barren = 0
            return None
        # Headers without end, endless interim answers, chunk extensions and trailers: bytes that carry nothing.
        self._barren += len(piece)
        return Garbled(f"{self.upstream} {self._too_much()}") if self._barren > self._head_cap else None

    def lost(self, clean: bool, reused: bool) -> UpstreamFault | None:
        """Judge the end of the connection: nothing is wrong only where the end of the body was to be told by it."""
        if self.headed and self._until_close and clean:
            self.complete = True
            return None
        if self._heard:
            return Garbled(f"{self.upstream} closed the connection in the middle of its answer")
        quick = self.line is not None and self.line.loop.time() - self._sent_at < STALE_WITHIN
        message = f"{self.upstream} closed the connection without an answer"
        if reused and quick:
            return Stale(message)
        return Unavailable(message, code="upstream_closed")

    def overdue(self, now: float) -> TimedOut | None:
        """The limit that has passed, if one has; a reader who is not waiting holds nobody up but the total."""
        limits = self._timeouts
        if now >= self._total_at:
            return TimedOut(f"{self.upstream} did not finish within {limits.total:g} s (limit: total)")
        if self._waiter is None or now < self._stall_at:
            return None
        if self.size:
            return TimedOut(f"{self.upstream} fell silent for {limits.idle:g} s in mid-answer (limit: idle)")
        return TimedOut(f"{self.upstream} sent nothing for {limits.first_byte:g} s (limit: first_byte)")

    def check_at(self, now: float) -> float:
        """When to look at the deadlines again."""
        stall_at = now + self._timeouts.idle if self._waiter is None else self._stall_at
        return min(stall_at, self._total_at)

    def settle(self, error: UpstreamFault | None) -> None:
        """Nothing more will come."""
        self.error = error
        self.line = self._parser = None
        if self._waiter is not None:
            self._wake()

    def on_message_begin(self) -> None:
        if self.headed:
            raise _Unwanted("sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._head_cap:
            raise _Unwanted(self._too_much())
        if self.headed:  # a trailer
            return
        key, text = _known_name(name), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None  # it is the caller
        status = parser.get_status_code()
        if status < 200:
            self._skip_interim(status)
            return
        coding = self.headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise _Unwanted("used a transfer-encoding other than chunked")
        self.status, self.headed = status, True
        self.keep_alive = parser.should_keep_alive()
        self._until_close = coding is None and "content-length" not in self.headers
        self.complete = self._head_only

    def on_body(self, piece: bytes) -> None:
        if self.complete:
            raise _Unwanted("sent more than its answer")
        self._pieces.append(piece)
        self.size += len(piece)
        self.buffered += len(piece)

    def on_message_complete(self) -> None:
        self.complete = self.headed

    def take(self) -> bytes:
        """Whatever part of the body is here, as one piece; empty if none is."""
        pieces = self._pieces
        if not pieces:
            return b""
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.buffered = 0
        if self.line is not None:
            self.line.resume()
        return whole

    async def arrival(self) -> None:
        """Wait for the head, a piece, the end or a fault; a wait that is cancelled closes the socket at once."""
        line = self.line
        if line is None:
            return
        if self._waiter is not None:
            raise RuntimeError("an answer has one reader at a time")
        self._waiter = waiter = line.loop.create_future()
        if self.headed:
            idle_at = line.loop.time() + self._timeouts.idle
            self._stall_at = idle_at if self.size else max(idle_at, self._sent_at + self._timeouts.first_byte)
        line.watch(min(self._stall_at, self._total_at))
        try:
            await waiter
        except BaseException:
            self.abandon()
            raise
        finally:
            self._waiter = None

    def abandon(self) -> None:
        """Give the answer up: the socket is closed at once, unless the whole answer is here."""
        if self.line is not None:
            self.line.end(Garbled(f"the answer of {self.upstream} was given up before its end"))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _skip_interim(self, status: int) -> None:
        if status < 100 or status == 101:
            raise _Unwanted(f"answered with the status {status}, which nobody asked for")
        self.headers.clear()

    def _too_much(self) -> str:
        return f"sent more than {size(self._head_cap)} of headers or framing"


@lru_cache(maxsize=_KNOWN_NAMES)
def _known_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _words(broken: Exception) -> str:
    if isinstance(broken, HttpParserUpgrade):
        return "switched protocols, which nobody asked for"
    cause = broken.__context__
    return str(cause) if isinstance(cause, _Unwanted) else f"does not speak HTTP/1.1 as it should: {broken}"
