"""News of changed tools, for everybody who listens. Knows neither tools nor messages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toolgate.tools.tool import OnChange


class Ear:
    """One who listens: changes that came while it was busy are one piece of news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.closed = False

    async def next(self) -> bool:
        """Wait for a change; False when there will be no more."""
        await self.news.wait()
        self.news.clear()
        return not self.closed


class Changes:
    """Passes every change on to all ears."""

    def __init__(self, subscribe: Callable[[OnChange], Callable[[], None]]) -> None:
        self._ears: set[Ear] = set()
        self._closed = False
        self._unsubscribe = subscribe(self._changed)

    @contextmanager
    def listening(self) -> Iterator[Ear]:
        """An ear that hears what happens meanwhile."""
        ear = Ear()
        self._ears.add(ear)
        if self._closed:
            self._end(ear)
        try:
            yield ear
        finally:
            self._ears.discard(ear)

    def close(self) -> None:
        """There is no more news: everybody who listens is done."""
        if not self._closed:
            self._closed = True
            self._unsubscribe()
        for ear in self._ears:
            self._end(ear)

    def _changed(self) -> None:
        for ear in self._ears:
            ear.news.set()

    def _end(self, ear: Ear) -> None:
        ear.closed = True
        ear.news.set()
