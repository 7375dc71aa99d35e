"""The connections to one origin: at most so many at work, the idle ones kept for a while, callers served in turn."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from toolgate.conversation.errors import Unavailable
from toolgate.upstreams.transport.connection import Connection
from toolgate.upstreams.transport.limits import Timeouts

Dial = Callable[[float, Callable[[], Connection]], Coroutine[Any, Any, Connection]]


class Pool:
    """Lends connections out; a connection is a slot while it works, and a slot is never lost."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, upstream: str, dial: Dial, limit: int, keepalive: float
    ) -> None:
        self._loop = loop
        self.now = loop.time
        self.upstream = upstream
        self._dial = dial
        self._limit = limit
        self._keepalive = keepalive
        self._busy = 0
        self._closed = False
        self._all: set[Connection] = set()
        self._idle: deque[Connection] = deque()  # the longest idle first; the last one is lent first
        self._line: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def ready(self) -> Connection | None:
        """An idle connection at once, if there is one and nobody has to wait."""
        if self._busy >= self._limit:
            return None
        connection = self._take_idle() if self._idle else None
        if connection is not None:
            self._busy += 1
        return connection

    async def acquire(self, timeouts: Timeouts, *, fresh: bool = False) -> Connection:
        """A connection that is the caller's until its exchange ends: idle unless it must be `fresh`, else opened."""
        await self._slot(timeouts.first_byte)
        try:
            connection = None if fresh else self._take_idle()
            if connection is None:
                self._make_room()
                connection = await self._open(timeouts.connect)
                self._refuse_if_closed(connection)
        except BaseException:
            self._pass_on()
            raise
        return connection

    def opened(self, connection: Connection) -> None:
        self._all.add(connection)

    def free(self, connection: Connection) -> None:
        if connection.open and not self._closed:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(self._keepalive, self._sweep)
        self._pass_on()

    def lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def in_use(self) -> bool:
        """Whether anything would be lost by forgetting this pool."""
        return bool(self._all or self._busy)

    async def aclose(self) -> None:
        """Close every socket and wait until they are gone; whoever waits in line is turned away."""
        self._closed = True
        self._forget_sweeper()
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_exception(self._gone())
        for connection in tuple(self._all):
            connection.abort()
        if self._all:
            self._emptied = self._loop.create_future()
            await self._emptied

    async def _slot(self, limit: float) -> None:
        if self._closed:
            raise self._gone()
        if self._busy < self._limit:
            self._busy += 1
            return
        try:
            async with asyncio.timeout(limit if limit < inf else None):
                await self._turn()
        except TimeoutError:
            text = f"all {self._limit} connections to {self.upstream} were busy for {limit:g} s"
            raise Unavailable(text, status=503) from None

    async def _turn(self) -> None:
        waiter = self._loop.create_future()
        self._line.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._pass_on()  # our turn came while we were leaving
            raise

    def _pass_on(self) -> None:
        """Give a slot to whoever has waited longest."""
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy -= 1

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _make_room(self) -> None:
        if self._idle and len(self._idle) + self._busy > self._limit:
            self._idle.popleft().close()

    async def _open(self, limit: float) -> Connection:
        """Dial, and forget a connection whose dialling failed or was cancelled: uvloop never reports the loss of it."""
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection(self._loop, self.upstream, self))
            return made[-1]

        try:
            return await self._dial(limit, make)
        except BaseException:
            for connection in made:
                connection.close()
                self.lost(connection)
            raise

    def _refuse_if_closed(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
            raise self._gone()

    def _gone(self) -> Unavailable:
        return Unavailable(f"the connections to {self.upstream} were closed here", status=503)

    def _sweep(self) -> None:
        """Close what has been idle for too long, and come back when the next one will be."""
        self._sweeper = None
        oldest = self._loop.time() - self._keepalive
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().close()
        if self._idle:
            self._sweeper = self._loop.call_at(self._idle[0].idle_since + self._keepalive, self._sweep)

    def _forget_sweeper(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
