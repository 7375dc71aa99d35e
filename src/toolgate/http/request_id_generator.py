"""Make the ids of requests, which stand in their answers, their log lines and their records."""

import string
import time
from collections.abc import Callable

from toolgate.conversation.random_ids import random_suffix

_IN_ORDER = string.digits + string.ascii_uppercase + string.ascii_lowercase
# Two characters in order, one pair for each of the 3,844 parts of a second.
_PAIRS = [first + second for first in _IN_ORDER for second in _IN_ORDER]


class RequestIdGenerator:
    """Makes random ids that begin with the time at which they are made: eight characters, to a quarter of a millisecond.

    A database adds such ids at the end of its index. Each random one would change another page of it, which makes storing a
    request three times as expensive once there are 200,000 rows.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._start = ""
        self._from = self._until = 0.0

    def new_id(self, length: int) -> str:
        """Return an id of so many letters and digits."""
        now = self._clock()
        if not self._from <= now < self._until:
            # The second as six digits of base 62, once for all ids of it: `1tYQpC`.
            second = int(now)
            self._from, self._until = second, second + 1
            self._start = "".join([_IN_ORDER[second // 62**place % 62] for place in range(5, -1, -1)])
        return self._start + _PAIRS[int((now - self._from) * len(_PAIRS))] + random_suffix(length - 8)
