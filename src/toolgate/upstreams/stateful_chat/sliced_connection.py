"""A WebSocket connection of the library that parses what it receives in slices, with turns of the event loop between them.

The library parses all that a socket delivers in one call, which takes seconds for half a million empty pings. Nothing is
read from the socket while a slice is left, while messages wait for their reader, or while the peer does not read our pongs.
"""

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

SLICE = 1024  # bytes: at most 512 frames, which take a few milliseconds


class SlicedClientConnection(ClientConnection):
    """A connection to a server; it sends as the library does."""

    _received = b""
    _parsed = 0  # bytes of what was received
    _is_scheduled = False
    _has_full_queue = False  # of messages for the reader
    _on_parsed: Callable[[], None] | None = None  # what follows when all is parsed, instead of reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have a full queue of messages stop the parser, too."""
        super().connection_made(transport)
        self.recv_messages.pause, self.recv_messages.resume = self._stop, self._go_on

    def data_received(self, data: bytes) -> None:
        """Parse the data, or the first slice of it."""
        self._received, self._parsed = self._received[self._parsed :] + data, 0
        if not self._is_scheduled:
            self._parse()

    def eof_received(self) -> None:
        """End, once everything is parsed."""
        if self._has_unparsed:
            self._on_parsed = self._end
            return True  # type: ignore[return-value]  # the library never keeps a connection open, so it returns None
        super().eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End; what a peer sent before it closed the connection in good order is parsed before."""
        if exc is None and self._has_unparsed and self.protocol.state is State.OPEN:
            self._on_parsed = lambda: super(SlicedClientConnection, self).connection_lost(None)
            return
        self._received, self._parsed, self._on_parsed = b"", 0, None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Go on: the peer reads."""
        super().resume_writing()
        self._schedule()

    @property
    def _has_unparsed(self) -> bool:
        return self._parsed < len(self._received)

    def _stop(self) -> None:
        self._has_full_queue = True

    def _go_on(self) -> None:
        self._has_full_queue = False
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._parse)

    def _parse(self) -> None:
        """Parse a slice, and continue unless the peer or the reader must catch up first."""
        self._is_scheduled = False
        if not (self.paused or self._has_full_queue) and self._has_unparsed:
            start, self._parsed = self._parsed, self._parsed + SLICE
            super().data_received(self._received[start : self._parsed])
        is_held = self.paused or self._has_full_queue
        if is_held or self._has_unparsed:
            self.transport.pause_reading()
            if not is_held:
                self._schedule()
            return
        self._received, self._parsed = b"", 0
        if self._on_parsed is not None:
            self._on_parsed()
        else:
            self.transport.resume_reading()

    def _end(self) -> None:
        super().eof_received()
        self.transport.close()
