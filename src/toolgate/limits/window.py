"""A minute that slides: how much was granted in the last sixty seconds.

Time is told in slots of a tenth of a second. A slot counts until its last instant is a minute old, so that in no minute,
wherever it begins, more is granted than the limit; the price is that what was granted comes back a slot late at most.
A window holds 601 numbers, however high the limit, and every operation but a refusal takes constant time.
"""

from collections import OrderedDict

SLOT = 100_000_000
"""Nanoseconds of a slot."""

SLOTS = 600


def seconds(slots: int, now: int) -> float:
    """From now, in nanoseconds, to the beginning of a slot."""
    return max(0.0, (slots * SLOT - now) / 1e9)


class Window:
    """What was granted in the last minute; `now` is a clock's reading in nanoseconds that never goes back."""

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self.used = 0
        self._slots: OrderedDict[int, int] = OrderedDict()

    def slide(self, now: int) -> None:
        """Forget what is older than a minute."""
        gone = now // SLOT - SLOTS - 1
        while self._slots and next(iter(self._slots)) <= gone:
            self.used -= self._slots.popitem(last=False)[1]

    def add(self, now: int, amount: int) -> int:
        """Grant an amount; the slot in which it was granted."""
        slot = now // SLOT
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self.used += amount
        return slot

    def give_back(self, slot: int, amount: int) -> None:
        """Take back part of what was granted in a slot; what has slid out of the minute came back by itself."""
        held = self._slots.get(slot)
        if held is not None:
            self._slots[slot] = held - amount
            self.used -= amount

    def fits_in(self, now: int, amount: int, limit: int) -> float:
        """Seconds until the amount fits under the limit, if nothing else is granted meanwhile."""
        excess = self.used + amount - limit
        if excess <= 0:
            return 0.0
        for slot, held in self._slots.items():
            excess -= held
            if excess <= 0:
                return seconds(slot + SLOTS + 1, now)
        return 60.0

    def empty_in(self, now: int) -> float:
        """Seconds until nothing of what was granted counts any more."""
        if not self.used:
            return 0.0
        return seconds(next(reversed(self._slots)) + SLOTS + 1, now)
