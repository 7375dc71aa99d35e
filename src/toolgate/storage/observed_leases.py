"""Watch leases of other nodes without comparing clocks.

The clocks of two nodes differ, and any of them may be set by an hour at any moment. So the time that is stored with a lease
is never compared with a clock: it changes when its holder renews it, and a node that finds the same time for as long as a
lease lasts, by its own monotonic clock, knows that the holder is gone. Knows no rows.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from threading import Lock

# Callers may make any number of keys and conversations, so the memory for them is bounded.
_MOST = 10_000
# Seconds by which a clock must have been set to count as a jump: smaller steps keep clocks right.
_NOTICED = 1.0


class ObservedLeases:
    """The leases of other nodes, and since when this node has seen each of them unchanged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, most: int | None = _MOST) -> None:
        """Of more than `most` leases the oldest are forgotten, and watched from the beginning again."""
        self._clock = clock
        self._most = most
        self._since: dict[Hashable, tuple[Hashable, float]] = {}
        self._turn = Lock()  # looked at from the threads of a database

    def age(self, thing: Hashable, lease: Hashable) -> float:
        """Return the seconds for which the thing has had this very lease, as far as this node has seen."""
        with self._turn:
            now = self._clock()
            known, since = self._since.get(thing, (None, now))
            if known == lease:
                return now - since
            # Removed first: a dict keeps the place of a key that is set again, and the first one is the oldest.
            self._since.pop(thing, None)
            self._since[thing] = (lease, now)
            if self._most is not None and len(self._since) > self._most:
                del self._since[next(iter(self._since))]
            return 0.0

    def keep(self, things: Collection[Hashable]) -> None:
        """Forget all others."""
        with self._turn:
            for gone in self._since.keys() - things:
                del self._since[gone]


class ClockJumps:
    """How far the wall clock was set forward while this process ran."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        # The distance of the two clocks changes only when the wall clock is set.
        self._apart = wall() - steady()
        self._seen: deque[tuple[float, float]] = deque(maxlen=100)

    def forward(self, within: float) -> float:
        """Return the seconds of all forward jumps within the last so many seconds."""
        now = self._steady()
        apart = self._wall() - now
        if abs(apart - self._apart) > _NOTICED:
            self._seen.append((now, apart - self._apart))
            self._apart = apart
        return max(0.0, sum(jump for at, jump in self._seen if now - at < within))
