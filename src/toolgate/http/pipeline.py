"""Hold what a client sends before the response to its current request is complete."""

import asyncio
from collections import deque

from toolgate.http.request_cycle import RequestResponseCycle

# Beyond so many bytes nothing is read: a client that sends requests without end waits in its own kernel.
_HELD_BYTES = 64 * 1024


class PipelinedRequestQueue:
    """Requests that wait for their turn, and bytes behind them that were not parsed yet."""

    __slots__ = ("_paused", "_transport", "held", "requests")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.requests: deque[RequestResponseCycle] = deque()
        self.held = bytearray()
        self._transport = transport
        self._paused = False

    def hold(self, data: bytes | memoryview) -> None:
        """Keep bytes; reading is paused when they are many."""
        self.held += data
        if len(self.held) > _HELD_BYTES:
            self._paused = True
            self._transport.pause_reading()

    def release(self) -> bytes:
        """Return the held bytes and resume reading."""
        data = bytes(self.held)
        self.held.clear()
        self.resume_reading()
        return data

    def resume_reading(self) -> None:
        """Read on, if reading was paused here."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def clear(self) -> None:
        """Forget everything."""
        self.requests.clear()
        self.held.clear()
