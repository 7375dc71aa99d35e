"""Pause and resume one connection in both directions."""

import asyncio


class FlowControl:
    """Pauses reading for a slow application, and has the application wait for a slow client."""

    __slots__ = ("_transport", "_writable", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.read_paused = self.write_paused = False
        self._transport = transport
        self._writable: asyncio.Event | None = None  # made for the first that waits: most clients are fast enough

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Have `drain` wait, because the client has not read what was written."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None  # those that wait have it; the next pause needs one that is not set

    async def drain(self) -> None:
        """Wait until the client has read enough of what was written."""
        if not self.write_paused:
            return
        if self._writable is None:
            self._writable = asyncio.Event()
        await self._writable.wait()
