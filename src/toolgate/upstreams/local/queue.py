"""Queue requests for one answer at a time. Knows nothing of models."""

import asyncio
from collections import deque

from toolgate.conversation.errors import GatewayOverloaded

_RETRY = 5.0


class GrantedTurn:
    """The turn of a request, released once."""

    def __init__(self, queue: "EngineTurnQueue") -> None:
        self._queue: EngineTurnQueue | None = queue

    def release(self) -> None:
        """Give the turn to the next request."""
        # The engine releases it when a generation has ended, and the stream once more when it is closed.
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.grant_next()


class EngineTurnQueue:
    """A queue for one turn at a time; `capacity` requests may wait, each up to `seconds`."""

    def __init__(self, capacity: int, seconds: float) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    async def acquire(self) -> GrantedTurn:
        """Wait for a turn; GatewayOverloaded has the number of requests ahead."""
        if not self._busy:
            self._busy = True
            return GrantedTurn(self)
        if len(self._waiting) >= self._capacity:
            raise self._full(f"the queue is full: {self._capacity} requests wait already")
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter
        except TimeoutError:
            before = self._withdraw(waiter)
            raise self._full(f"{before} requests were still before this one after {self._seconds:g} s") from None
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        return GrantedTurn(self)

    def grant_next(self) -> None:
        """Give the turn to the next request."""
        while self._waiting:
            waiter = self._waiting.popleft()
            # `_busy` stays true: the turn changes hands. A waiter that is done was cancelled or has timed out.
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy = False

    def _withdraw(self, waiter: asyncio.Future[None]) -> int:
        """Leave the queue and return how many requests were ahead, with the running one."""
        if waiter in self._waiting:
            before = self._waiting.index(waiter) + 1
            self._waiting.remove(waiter)
            return before
        if not waiter.cancelled():
            self.grant_next()  # the turn was granted while this request was being cancelled
        return 1

    def _full(self, text: str) -> GatewayOverloaded:
        message = f"The embedded model answers one request at a time, and {text}."
        return GatewayOverloaded(message, code="upstream_full", retry_after=_RETRY)
