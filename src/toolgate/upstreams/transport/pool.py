"""Pool the connections to one origin: busy ones up to a limit, idle ones for a while, a queue of callers in turn."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.scheduling import CALLER, FairQueue
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.limits import UpstreamTimeouts

Dial = Callable[[float, Callable[[], UpstreamHttpConnection]], Coroutine[Any, Any, UpstreamHttpConnection]]


class ConnectionPool:
    """Connections to one origin; each busy connection takes a slot, and every slot comes back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, upstream: str, dial: Dial, limit: int, keepalive: float
    ) -> None:
        self._loop = loop
        self.now = loop.time
        self.upstream = upstream
        self._dial = dial
        self._limit = limit
        self._keepalive = keepalive
        self._busy = 0  # slots taken: connections in an exchange, and those that are being opened
        self._closed = False
        self._connections: set[UpstreamHttpConnection] = set()
        self._idle: deque[UpstreamHttpConnection] = deque()  # the longest idle first; the last one is used first
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def ready(self) -> UpstreamHttpConnection | None:
        """Return an idle connection, if there is one and a slot is free."""
        # Most requests find one: they take it here without a coroutine.
        if self._busy >= self._limit:
            return None
        connection = self._take_idle() if self._idle else None
        if connection is not None:
            self._busy += 1
        return connection

    async def acquire(self, timeouts: UpstreamTimeouts, *, fresh: bool = False) -> UpstreamHttpConnection:
        """Return a connection for one exchange: an idle one unless it must be `fresh`, else a new one."""
        await self._wait_for_slot(timeouts.first_byte)
        try:
            connection = None if fresh else self._take_idle()
            if connection is None:
                if self._idle and len(self._idle) + self._busy > self._limit:
                    self._idle.popleft().close()  # idle connections count towards what the upstream sees
                connection = await self._open(timeouts.connect)
                if self._closed:  # while it was being opened
                    connection.close()
                    raise self._closed_error()
        except BaseException:  # also when the caller is cancelled
            self._release_slot()
            raise
        return connection

    def opened(self, connection: UpstreamHttpConnection) -> None:
        self._connections.add(connection)

    def free(self, connection: UpstreamHttpConnection) -> None:
        if connection.open and not self._closed:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            if self._sweep_timer is None:
                self._sweep_timer = self._loop.call_later(self._keepalive, self._sweep)
        self._release_slot()

    def lost(self, connection: UpstreamHttpConnection) -> None:
        # Only forgets the socket. Its slot came back when the exchange ended, in `free`, or when its opening failed.
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def in_use(self) -> bool:
        """Whether there are connections or waiting callers."""
        return bool(self._connections or self._busy)

    async def aclose(self) -> None:
        """Close every socket and wait until they are closed; waiting callers get an error."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        # Callers first: an aborted connection frees its slot, which would go to the first of them.
        while self._queue:
            waiter = self._queue.take()
            if not waiter.done():
                waiter.set_exception(self._closed_error())
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._emptied = self._loop.create_future()
            await self._emptied

    async def _wait_for_slot(self, limit: float) -> None:
        if self._closed:
            raise self._closed_error()
        if self._busy < self._limit:
            self._busy += 1
            return
        try:
            async with asyncio.timeout(limit if limit < inf else None):
                waiter, caller = self._loop.create_future(), CALLER.get()
                self._queue.put(caller, waiter)
                try:
                    await waiter
                except asyncio.CancelledError:
                    if not self._queue.discard(caller, waiter) and not waiter.cancelled() and not waiter.exception():
                        self._release_slot()  # the slot was given to this caller while it was being cancelled
                    raise
        except TimeoutError:
            text = f"all {self._limit} connections to {self.upstream} were busy for {limit:g} s"
            raise UpstreamUnavailable(text, status=503) from None

    def _release_slot(self) -> None:
        """Give the slot to the caller whose turn it is, or free it."""
        while self._queue:
            waiter = self._queue.take()
            # `_busy` stays as it is: the slot changes hands. A waiter that is done has timed out or was cancelled.
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy -= 1

    def _take_idle(self) -> UpstreamHttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
        return None

    async def _open(self, limit: float) -> UpstreamHttpConnection:
        """Open a connection, and remove it again if its opening fails or is cancelled."""
        made: list[UpstreamHttpConnection] = []

        def make() -> UpstreamHttpConnection:
            made.append(UpstreamHttpConnection(self._loop, self.upstream, self))
            return made[-1]

        try:
            return await self._dial(limit, make)
        except BaseException:
            # uvloop never calls `connection_lost` for these, so that `aclose` would wait for them for ever.
            for connection in made:
                connection.close()
                self.lost(connection)
            raise

    def _closed_error(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"the connections to {self.upstream} were closed here", status=503)

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and set the timer for the next one."""
        self._sweep_timer = None
        oldest = self._loop.time() - self._keepalive
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().close()
        if self._idle:
            self._sweep_timer = self._loop.call_at(self._idle[0].idle_since + self._keepalive, self._sweep)
