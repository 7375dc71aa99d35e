"""Sum up what was granted in the last sixty seconds.

Time is counted in slots of a tenth of a second. A slot counts until its last instant is a minute old, so that in no minute,
wherever it begins, more is granted than the limit; in return, what was granted expires up to one slot late.
A window has at most 601 numbers, however high the limit, and every operation but a refusal takes constant time.
"""

from collections import OrderedDict

SLOT = 100_000_000  # the length of a slot in nanoseconds
SLOTS = 600  # of a minute


def seconds(slots: int, now: int) -> float:
    """Return the seconds from now, in nanoseconds, to the beginning of a slot."""
    return max(0.0, (slots * SLOT - now) / 1e9)


class SlidingWindow:
    """What was granted in the last minute; `now` is the time of a monotonic clock in nanoseconds."""

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self.used = 0
        self._slots: OrderedDict[int, int] = OrderedDict()

    def slide(self, now: int) -> None:
        """Forget what is older than a minute."""
        # One slot more than a minute: what was granted at the end of a slot must count for a whole minute.
        expired = now // SLOT - SLOTS - 1
        while self._slots and next(iter(self._slots)) <= expired:
            self.used -= self._slots.popitem(last=False)[1]

    def add(self, now: int, amount: int) -> int:
        """Grant an amount and return its slot."""
        slot = now // SLOT
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self.used += amount
        return slot

    def give_back(self, slot: int, amount: int) -> None:
        """Give back part of what was granted in a slot, unless the slot has expired."""
        granted = self._slots.get(slot)
        if granted is not None:
            self._slots[slot] = granted - amount
            self.used -= amount

    def fits_in(self, now: int, amount: int, limit: int) -> float:
        """Return the seconds until the amount fits under the limit, if nothing else is granted meanwhile."""
        excess = self.used + amount - limit
        if excess <= 0:
            return 0.0
        # Slots are in order of time, since the clock is monotonic: the oldest expire first.
        for slot, granted in self._slots.items():
            excess -= granted
            if excess <= 0:
                return seconds(slot + SLOTS + 1, now)
        return 60.0

    def empty_in(self, now: int) -> float:
        """Return the seconds until everything that was granted has expired."""
        if not self.used:
            return 0.0
        return seconds(next(reversed(self._slots)) + SLOTS + 1, now)
