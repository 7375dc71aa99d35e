"""Queue requests for one answer at a time. Knows nothing of models."""

import asyncio

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.scheduling import FairSlots, QueueFull

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
    """A queue for one turn at a time, in which callers take turns; `capacity` requests may wait, each up to `seconds`.

    In a full queue, a caller with few requests takes the place of the last request of the caller with the most.
    """

    def __init__(self, capacity: int, seconds: float) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._slots = FairSlots(1, capacity)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return self._slots.waiting

    async def acquire(self, caller: str = "") -> GrantedTurn:
        """Wait for a turn; GatewayOverloaded has the number of other requests."""
        slots = self._slots
        if not slots.try_acquire():
            try:
                async with asyncio.timeout(self._seconds):
                    await slots.wait(caller)
            except QueueFull:
                raise self._full(f"the queue is full: {self._capacity} requests wait already") from None
            except TimeoutError:
                text = f"{slots.waiting + 1} more requests were running or waiting after {self._seconds:g} s"
                raise self._full(text) from None
        return GrantedTurn(self)

    def grant_next(self) -> None:
        """Give the turn to the next request."""
        self._slots.release()

    def _full(self, text: str) -> GatewayOverloaded:
        message = f"The embedded model answers one request at a time, and {text}."
        return GatewayOverloaded(message, code="upstream_full", retry_after=_RETRY)
