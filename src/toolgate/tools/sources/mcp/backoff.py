"""How long to wait before trying again. Waits for nothing itself."""

from collections.abc import Callable
from secrets import SystemRandom

_STEADY = 30.0


class Backoff:
    """Ever longer waits, with jitter so that many clients do not come back at once; a try that held starts them anew."""

    def __init__(self, clock: Callable[[], float], first: float = 0.5, last: float = 60.0) -> None:
        self._clock = clock
        self._first = first
        self._last = last
        self._next = first
        self._random = SystemRandom()
        self._started = clock()

    def start(self) -> None:
        """A try begins."""
        self._started = self._clock()

    @property
    def held(self) -> bool:
        """Whether the try has lasted long enough to count as a success."""
        return self._clock() - self._started >= _STEADY

    def seconds(self) -> float:
        """How long to wait now that the try has ended."""
        if self.held:
            self._next = self._first
        wait = self._next * self._random.uniform(0.5, 1.0)
        self._next = min(self._last, 2 * self._next)
        return wait
