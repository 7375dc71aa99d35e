"""Who waits for which answer in this process, and how they are woken."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Waiting:
    """Waits for approvals by their ids; many may wait for one."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def listening(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever somebody is woken for this id."""
        event = asyncio.Event()
        events = self._events.setdefault(id, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                self._events.pop(id, None)

    def wake(self, id: str) -> None:
        """Wake all who wait for it."""
        for event in self._events.get(id, ()):
            event.set()


async def heard(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set or the time is over, whichever comes first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
