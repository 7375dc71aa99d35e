"""Messages on their way to one client. Knows neither what they say nor how they are sent."""

import asyncio
from collections import deque

from toolgate.server.mcp.jsonrpc import Json

LIMIT = 1000
"""Notifications kept for a client that does not read; later ones are dropped, responses never."""


class Outbox:
    """A queue that is closed when there is nothing more to come."""

    def __init__(self) -> None:
        self.closed = False
        self.notified = False
        self._messages: deque[Json] = deque()
        self._news = asyncio.Event()
        self._due = asyncio.Event()

    def notify(self, message: Json) -> None:
        """Put a notification, unless too many wait already."""
        if len(self._messages) < LIMIT and not self.closed:
            self.notified = True
            self._put(message)
            self._due.set()

    def respond(self, message: Json) -> None:
        """Put a response."""
        self._put(message)

    def close(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._news.set()
        self._due.set()

    def take(self) -> list[Json]:
        """Everything that waits."""
        taken = list(self._messages)
        self._messages.clear()
        if not self.closed:
            self._news.clear()
        return taken

    async def wait(self, seconds: float | None = None) -> bool:
        """Whether there is something to take, or nothing more to wait for, within that time."""
        return await _within(self._news, seconds)

    async def wait_due(self, seconds: float | None = None) -> bool:
        """Whether there is a notification, or the last response, within that time."""
        return await _within(self._due, seconds)

    async def wait_closed(self) -> None:
        """Wait until nothing more comes."""
        while not self.closed:
            self._due.clear()
            await self._due.wait()

    def _put(self, message: Json) -> None:
        self._messages.append(message)
        self._news.set()


async def _within(event: asyncio.Event, seconds: float | None) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
