"""Slots that callers share fairly: one who asks for many does not keep the others waiting.

A free slot goes to the caller who holds the fewest, and among equals to the one who was served longest ago. One slot is kept
in reserve for a caller who holds none, so that another's long calls in all the others are not waited for.
"""

import asyncio
from collections import Counter, deque
from itertools import count


class FairSemaphore:
    """Counts slots; `acquire` waits for one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._served: dict[str, int] = {}  # when a caller who holds or waits got its last slot
        self._grants = count(1)

    async def acquire(self, caller: str) -> None:
        """Take a slot for this caller, who gives it back by `release`."""
        if caller not in self._waiting and self._has_room(caller):
            self._grant(caller)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                self.release(caller)
            else:
                self._forget(caller, turn)
            raise

    def release(self, caller: str) -> None:
        """Give a slot back."""
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        while (following := self._next()) is not None:
            turn = self._waiting[following][0]
            self._forget(following, turn)
            if not turn.done():
                self._grant(following)
                turn.set_result(None)
        if not self._held[caller] and caller not in self._waiting:
            self._served.pop(caller, None)

    def _grant(self, caller: str) -> None:
        self._held[caller] += 1
        self._served[caller] = next(self._grants)

    def _next(self) -> str | None:
        """Whose turn it is, if there is room."""
        following = min(self._waiting, key=lambda one: (self._held[one], self._served.get(one, 0)), default=None)
        return following if following is not None and self._has_room(following) else None

    def _has_room(self, caller: str) -> bool:
        reserve = 0 if self._held[caller] else 1
        return self._held.total() < self._slots + reserve

    def _forget(self, caller: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(caller)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[caller]
