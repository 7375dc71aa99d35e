"""Slots for short work: if none is free, callers wait in a queue in which they take turns."""

import asyncio

from toolgate.scheduling.fair_queue import FairQueue


class QueueFull(Exception):
    """The queue is full, or the place in it was given to a caller with fewer entries."""


class FairSlots:
    """`count` slots; at most `waiting` tasks wait for one, or any number if that is None.

    Acquiring a free slot costs a comparison. A slot that is released while tasks wait passes to the next of them without
    being free in between, so that no later task can take it first.
    """

    def __init__(self, count: int, waiting: int | None = None) -> None:
        self._count = count
        self._max_waiting = waiting
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.busy = 0  # slots in use

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return self._queue.size

    def try_acquire(self) -> bool:
        """Take a slot if one is free, and return whether it was."""
        if self.busy >= self._count:
            return False
        self.busy += 1
        return True

    async def wait(self, key: str) -> None:
        """Wait for a slot, after `try_acquire` found none; QueueFull if too many wait.

        In a full queue, a caller with few entries takes the place of the last entry of the caller with the most.
        """
        if self._max_waiting is not None and self._queue.size >= self._max_waiting:
            last = self._queue.evict_for(key)
            if last is None:
                raise QueueFull
            if not last.done():
                last.set_exception(QueueFull())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not self._queue.discard(key, turn) and turn.done() and not turn.cancelled() and not turn.exception():
                self.release()  # the slot was passed on while this task was being cancelled
            raise

    def release(self) -> None:
        """Return a slot, or pass it to the caller whose turn it is."""
        while self._queue.size:
            turn = self._queue.take()
            if not turn.done():  # else its task was cancelled and has not run since
                turn.set_result(None)
                return
        self.busy -= 1
