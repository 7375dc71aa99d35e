"""Forward changes of the tools to every listener. Knows neither tools nor messages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toolgate.tools.tool import OnChange


class UpdateListener:
    """A subscription; changes that come while it does not wait are merged into one."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.closed = False

    async def next(self) -> bool:
        """Wait for a change; False when there will be no more."""
        await self.changed.wait()
        self.changed.clear()
        return not self.closed


class ToolUpdateListeners:
    """The listeners of one server, all served by one subscription to the registry."""

    def __init__(self, subscribe: Callable[[OnChange], Callable[[], None]]) -> None:
        self._listeners: set[UpdateListener] = set()
        self._closed = False
        self._unsubscribe = subscribe(self._on_change)

    @contextmanager
    def listening(self) -> Iterator[UpdateListener]:
        """Subscribe for as long as the context is open."""
        listener = UpdateListener()
        self._listeners.add(listener)
        if self._closed:  # a request that came while the server stops
            self.close()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End every subscription, present and future."""
        if not self._closed:
            self._closed = True
            self._unsubscribe()
        for listener in self._listeners:
            listener.closed = True
            listener.changed.set()

    def _on_change(self) -> None:
        for listener in self._listeners:
            listener.changed.set()
