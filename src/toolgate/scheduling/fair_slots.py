"""Slots that callers share: whoever finds none free waits in a queue in which callers take turns."""

import asyncio

from toolgate.scheduling.fair_queue import FairQueue


class QueueFull(Exception):
    """So many wait already that this one cannot, or has to make room for a caller with fewer."""


class FairSlots:
    """`count` slots; at most `waiting` wait for one, if that is bounded.

    Taking a free slot costs a comparison. A slot that is freed while somebody waits passes to them and is never free in
    between, so that nobody who comes later gets it first.
    """

    def __init__(self, count: int, waiting: int | None = None) -> None:
        self._count = count
        self._most = waiting
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.busy = 0
        """How many slots are taken."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def take(self) -> bool:
        """Take a slot if one is free."""
        if self.busy >= self._count:
            return False
        self.busy += 1
        return True

    async def wait(self, key: str) -> None:
        """Wait for a slot and take it; QueueFull if too many wait.

        When the queue is full, a caller with few in it takes the place of the last of the caller with the most.
        """
        if self._most is not None and len(self._queue) >= self._most:
            last = self._queue.make_room(key)
            if last is None:
                raise QueueFull
            if not last.done():
                last.set_exception(QueueFull())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, place)
        try:
            await place
        except asyncio.CancelledError:
            if not self._queue.discard(key, place) and place.done() and not place.cancelled() and not place.exception():
                self.free()  # the turn came while we were leaving
            raise

    def free(self) -> None:
        """Give a slot back, to the caller whose turn it is."""
        while len(self._queue):
            place = self._queue.take()
            if not place.done():
                place.set_result(None)
                return
        self.busy -= 1
