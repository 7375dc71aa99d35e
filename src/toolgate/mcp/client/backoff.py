"""Compute how long to wait before the next attempt. Does not wait itself."""

from collections.abc import Callable
from secrets import SystemRandom

# A server that dies a few seconds after every handshake has not succeeded: its waits go on to grow.
_STABLE_SECONDS = 30.0


class Backoff:
    """Doubling waits, with jitter so that clients do not reconnect at once; an attempt that lasted resets them."""

    def __init__(self, clock: Callable[[], float], first: float = 0.5, last: float = 60.0) -> None:
        self._clock = clock
        self._first = first
        self._last = last
        self._next = first
        self._random = SystemRandom()
        self._started = clock()

    def start(self) -> None:
        """Note the start of an attempt."""
        self._started = self._clock()

    @property
    def stable(self) -> bool:
        """Return whether the attempt has lasted long enough to count as a success."""
        return self._clock() - self._started >= _STABLE_SECONDS

    def seconds(self) -> float:
        """Return how long to wait now that the attempt has ended."""
        if self.stable:
            self._next = self._first
        wait = self._next * self._random.uniform(0.5, 1.0)
        self._next = min(self._last, 2 * self._next)
        return wait
