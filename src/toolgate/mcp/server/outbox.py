"""The queue of messages that wait to be sent to one client. Knows neither their content nor the transport."""

import asyncio
from collections import deque
from typing import TypeAlias

from toolgate.mcp.protocol.jsonrpc import Reply, RpcNotification

Outgoing: TypeAlias = RpcNotification | Reply

# Notifications kept for a client that does not read; later ones are dropped, responses never.
LIMIT = 1000


class McpOutbox:
    """A queue; `closed` once no more messages will be put."""

    def __init__(self) -> None:
        self.closed = False
        self.notified = False
        self._messages: deque[Outgoing] = deque()
        self._ready = asyncio.Event()
        # Set by all but a response, which may still be sent as plain JSON once the queue is closed.
        self._due = asyncio.Event()

    def notify(self, message: RpcNotification) -> None:
        """Put a notification, unless the queue is full or closed."""
        if len(self._messages) < LIMIT and not self.closed:
            self.notified = True
            self._messages.append(message)
            self._ready.set()
            self._due.set()

    def respond(self, message: Reply) -> None:
        """Put a response."""
        self._messages.append(message)
        self._ready.set()

    def close(self) -> None:
        """Mark the end of the messages."""
        self.closed = True
        self._ready.set()
        self._due.set()

    def take(self) -> list[Outgoing]:
        """Remove and return all messages."""
        taken = list(self._messages)
        self._messages.clear()
        if not self.closed:
            self._ready.clear()
        return taken

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is a message or the queue is closed; False after `seconds`."""
        return await _wait(self._ready, seconds)

    async def wait_due(self, seconds: float | None = None) -> bool:
        """Wait until there is a notification or the queue is closed; False after `seconds`."""
        return await _wait(self._due, seconds)

    async def wait_closed(self) -> None:
        """Wait until the queue is closed."""
        while not self.closed:
            self._due.clear()
            await self._due.wait()


async def _wait(event: asyncio.Event, seconds: float | None) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
