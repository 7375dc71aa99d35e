"""A semaphore that callers share fairly: a caller with many requests does not delay the others.

A free slot goes to the waiting caller with the fewest slots, and among equals to the one that was served longest ago. One
more slot is reserved for a caller without any, who therefore need not wait for long work of another caller in all others.
"""

import asyncio
from collections import Counter, deque
from itertools import count


class FairSemaphore:
    """Counts the slots that each caller holds; `acquire` waits for one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._served: dict[str, int] = {}  # the number of the last grant of each caller that holds a slot or waits
        self._grants = count(1)

    async def acquire(self, caller: str) -> None:
        """Wait for a slot for this caller, who returns it by `release`."""
        if caller not in self._waiting and self._has_free_slot(caller):
            self._grant(caller)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was granted at the same moment
                self.release(caller)
            else:
                self._forget(caller, turn)
            raise

    def release(self, caller: str) -> None:
        """Return a slot, and grant the free ones to waiting callers."""
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        while self._waiting:
            following = min(self._waiting, key=lambda one: (self._held[one], self._served.get(one, 0)))
            if not self._has_free_slot(following):
                break
            turn = self._waiting[following][0]
            self._forget(following, turn)
            if not turn.done():  # else its task was cancelled and has not run since
                self._grant(following)
                turn.set_result(None)
        if not self._held[caller] and caller not in self._waiting:
            self._served.pop(caller, None)

    def _grant(self, caller: str) -> None:
        self._held[caller] += 1
        self._served[caller] = next(self._grants)

    def _has_free_slot(self, caller: str) -> bool:
        reserve = 0 if self._held[caller] else 1
        return self._held.total() < self._slots + reserve

    def _forget(self, caller: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(caller)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[caller]
