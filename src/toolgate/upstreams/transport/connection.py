"""One socket to an upstream, with at most one request at a time. Knows no URL and no body."""

import asyncio
import ssl
from math import inf
from typing import Protocol, cast

from toolgate.conversation.errors import UpstreamError
from toolgate.upstreams.transport.limits import UpstreamTimeouts
from toolgate.upstreams.transport.response_reader import ResponseReader

# Unread bytes of a body at which reading pauses: the upstream then waits for a slow client, and memory stays small.
HIGH_WATER = 128 * 1024
# Bytes of a large body that are written at once: a socket's transport copies what the kernel does not take.
_SLICE = 256 * 1024


class ConnectionOwner(Protocol):
    """The pool of a connection."""

    def opened(self, connection: "UpstreamHttpConnection") -> None:
        """Add a connection whose socket is open."""

    def free(self, connection: "UpstreamHttpConnection") -> None:
        """Take back a connection whose exchange is over; it can be used again if it is `open`."""

    def lost(self, connection: "UpstreamHttpConnection") -> None:
        """Remove a connection whose socket is closed."""


class UpstreamHttpConnection(asyncio.Protocol):
    """A socket that sends a request and passes what arrives to its `ResponseReader`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstream: str, owner: ConnectionOwner) -> None:
        self.loop = loop
        self.upstream = upstream
        self.open = False
        self.idle_since = 0.0
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._reused = self._paused = self._writing_paused = False
        self._unsent = memoryview(b"")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def is_usable(self) -> bool:
        """Return whether a request may be sent on it; a failed write shows here before the loss is reported."""
        return self.open and self._transport is not None and not self._transport.is_closing()

    def send(
        self, head: bytes, body: bytes, timeouts: UpstreamTimeouts, total_at: float, head_cap: int
    ) -> ResponseReader:
        """Write a request; the response arrives in the returned reader."""
        assert self._transport is not None  # only open connections leave the pool
        reader = self._reader = ResponseReader(self, timeouts, total_at, head_cap, head.startswith(b"HEAD "))
        if len(body) < _SLICE:  # one write is one system call, and mostly one packet
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unsent = memoryview(body)
            self._write_slice()
        return reader

    def end(self, error: UpstreamError | None) -> None:
        """End the exchange: back to the pool if both sides are done with it, closed at once if not."""
        reader, self._reader = self._reader, None
        if reader is None or self._transport is None:
            return
        reader.settle(error)
        # A peer that answered before it had read the whole request would take the rest for the next one.
        if error is not None or not reader.keep_alive or self._unsent or self._transport.get_write_buffer_size():
            self.close()
        # Otherwise a connection that waits in the pool would not notice that the peer closes it.
        if self._paused:
            self.resume()
        self._reused = True
        self._owner.free(self)

    def close(self) -> None:
        """Close the socket at once, without the closing handshake of TLS: it could take long."""
        self.open = False
        self._unsent = memoryview(b"")
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """Close the socket, also during an exchange."""
        if self._reader is not None:
            self._reader.abandon()
        self.close()

    def resume(self) -> None:
        """Read from the socket again, if that was paused."""
        if self._paused and self._transport is not None:
            self._paused = False
            if self.open:
                self._transport.resume_reading()

    def watch(self, deadline: float) -> None:
        """Check the deadlines by then; one timer serves them all and is seldom moved."""
        # A later deadline leaves the timer as it is: `_tick` finds that nothing is overdue and sets it anew.
        if deadline < self._timer_at:
            self._cancel_timer()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._tick)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self.close()  # no request is under way: these bytes belong to no response
            return
        fault = reader.feed(data)
        if fault is not None or reader.complete:
            self.end(fault)
        elif reader.buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        # Over TLS an attacker can send FIN, but not close_notify: without it, the end of the body is not proven.
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        try:
            clean = tls is None or tls.read(1) == b""
        except ssl.SSLError:
            clean = False
        self._end_reader(clean)

    def connection_lost(self, exc: Exception | None) -> None:
        # After `eof_received` there is no reader left. Else the connection was reset, and the body may be cut off.
        self._end_reader(clean=False)
        self._cancel_timer()
        self._owner.lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._write_slice()

    def _write_slice(self) -> None:
        """Write a slice of what is unsent; the next follows when the socket has room and other callbacks had a turn."""
        if not self._unsent or not self.is_usable() or self._transport is None:
            return
        piece, self._unsent = self._unsent[:_SLICE], self._unsent[_SLICE:]
        self._transport.write(piece)
        if not self._writing_paused:
            self.loop.call_soon(self._write_slice)

    def _end_reader(self, clean: bool) -> None:
        self.open = False
        if self._reader is not None:
            self.end(self._reader.lost(clean, self._reused))

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._reader is None:
            return
        now = self.loop.time()
        late = self._reader.overdue(now)
        if late is not None:
            self.end(late)
        else:
            self.watch(self._reader.check_at(now))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf
