"""Who waits for which change in this process, and how they are woken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol


class Rousing(Protocol):
    """Tells those who wait that something has changed; what, they see for themselves."""

    def announce(self, topic: str) -> None:
        """Something has changed under this name."""

    def heard(self, topic: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set at every such announcement, from when it is entered on."""


class Waiting:
    """Wakes those who wait in this process; many may wait for one name."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def announce(self, topic: str) -> None:
        """Wake all who wait for it."""
        for event in self._events.get(topic, ()):
            event.set()

    @asynccontextmanager
    async def heard(self, topic: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever somebody is woken for this name."""
        event = asyncio.Event()
        events = self._events.setdefault(topic, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                self._events.pop(topic, None)


async def heard(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set or the time is over, whichever comes first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
