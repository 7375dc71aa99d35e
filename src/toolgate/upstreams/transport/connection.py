"""One socket to an upstream, with at most one answer under way on it. Knows no URL and no body."""

import asyncio
import ssl
from math import inf
from typing import Protocol, cast

from toolgate.conversation.errors import UpstreamFault
from toolgate.upstreams.transport.incoming import Incoming
from toolgate.upstreams.transport.limits import Timeouts

HIGH_WATER = 128 * 1024
_JOIN_BELOW = 64 * 1024


class Keeper(Protocol):
    """Whoever lends connections out."""

    def opened(self, connection: "Connection") -> None:
        """A socket is there."""

    def free(self, connection: "Connection") -> None:
        """The exchange is over; the connection is fit for another one if it is `open`."""

    def lost(self, connection: "Connection") -> None:
        """The socket is gone."""


class Connection(asyncio.Protocol):
    """A socket that sends a request and hands what comes back to the answer's `Incoming`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstream: str, keeper: Keeper) -> None:
        self.loop = loop
        self.upstream = upstream
        self.open = False
        self.idle_since = 0.0
        self._keeper = keeper
        self._transport: asyncio.Transport | None = None
        self._incoming: Incoming | None = None
        self._reused = self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it; a failed write shows here before the loss is reported."""
        return self.open and self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, timeouts: Timeouts, total_at: float, head_cap: int) -> Incoming:
        """Write a request; what comes back arrives in the returned answer."""
        assert self._transport is not None  # only open connections are lent out
        incoming = self._incoming = Incoming(self, timeouts, total_at, head_cap, head.startswith(b"HEAD "))
        if len(body) < _JOIN_BELOW:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return incoming

    def end(self, error: UpstreamFault | None) -> None:
        """Part from the answer: back to the pool if both sides are done with it, closed at once if not."""
        incoming, self._incoming = self._incoming, None
        if incoming is None or self._transport is None:
            return
        incoming.settle(error)
        # A peer that answered before it had read the whole request would take the rest for the next one.
        if error is not None or not incoming.keep_alive or self._transport.get_write_buffer_size():
            self.close()
        if self._paused:
            self.resume()
        self._reused = True
        self._keeper.free(self)

    def close(self) -> None:
        """Close the socket at once, without a farewell: a TLS one could take the peer's time."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """Close the socket, whatever is under way on it."""
        if self._incoming is not None:
            self._incoming.abandon()
        self.close()

    def resume(self) -> None:
        """Read from the socket again, if that was paused."""
        if self._paused and self._transport is not None:
            self._paused = False
            if self.open:
                self._transport.resume_reading()

    def watch(self, deadline: float) -> None:
        """Make sure that the deadlines are looked at by then; one timer serves them all and is seldom moved."""
        if deadline < self._timer_at:
            self._forget_timer()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._tick)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._keeper.opened(self)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            self.close()  # bytes that nobody asked for: whose answer they are is anybody's guess
            return
        fault = incoming.feed(data)
        if fault is not None or incoming.complete:
            self.end(fault)
        elif incoming.buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._hang_up(clean=self._farewell())

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up(clean=False)
        self._forget_timer()
        self._keeper.lost(self)

    def _hang_up(self, clean: bool) -> None:
        self.open = False
        if self._incoming is not None:
            self.end(self._incoming.lost(clean, self._reused))

    def _farewell(self) -> bool:
        """Whether the peer ended the stream itself: over TLS anybody on the way can send FIN, but not close_notify."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        try:
            return tls is None or tls.read(1) == b""
        except ssl.SSLError:
            return False

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._incoming is None:
            return
        now = self.loop.time()
        late = self._incoming.overdue(now)
        if late is not None:
            self.end(late)
        else:
            self.watch(self._incoming.check_at(now))

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf
