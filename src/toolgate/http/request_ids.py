"""Make the ids of requests, which stand in their answers, their log lines and their records."""

import string
import time
from collections.abc import Callable

from toolgate.conversation.ids import random_suffix

_IN_ORDER = string.digits + string.ascii_uppercase + string.ascii_lowercase


class RequestIds:
    """Makes random ids that begin with the second in which they are made: six characters, in the order of time.

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
            second = int(now)
            self._from, self._until = second, second + 1
            self._start = "".join([_IN_ORDER[second // 62**place % 62] for place in range(5, -1, -1)])
        return self._start + random_suffix(length - 6)
