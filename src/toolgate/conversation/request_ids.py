"""Make the ids of requests, which stand in their answers, their log lines and their records."""

import string

from toolgate.conversation.random_ids import random_suffix

_IN_ORDER = string.digits + string.ascii_uppercase + string.ascii_lowercase
_VALUES = {digit: value for value, digit in enumerate(_IN_ORDER)}
# Two characters in order, one pair for each of the 3,844 parts of a second.
_PAIRS = [first + second for first in _IN_ORDER for second in _IN_ORDER]
_PARTS = len(_PAIRS)
_LENGTH = 20
_SECOND_LENGTH = 6
_RANDOM_LENGTH = _LENGTH - _SECOND_LENGTH - 2


class RequestIdGenerator:
    """Makes random ids that begin with the time at which they are made: eight characters, to a quarter of a millisecond.

    A database adds such ids at the end of its index. Each random one would change another page of it, which makes storing a
    request three times as expensive once there are 200,000 rows.
    """

    def __init__(self) -> None:
        self._start = ""
        self._from = self._until = 0.0

    def new_id(self, now: float) -> str:
        """Return an id of 20 letters and digits for this time, in seconds since 1970."""
        if not self._from <= now < self._until:
            # The second as six digits of base 62, once for all ids of it: `1tYQpC`.
            second = int(now)
            self._from, self._until = second, second + 1
            self._start = "".join([_IN_ORDER[second // 62**place % 62] for place in range(_SECOND_LENGTH - 1, -1, -1)])
        return f"{self._start}{_PAIRS[int((now - self._from) * _PARTS)]}{random_suffix(_RANDOM_LENGTH)}"


def second_of(id: str) -> int | None:
    """Return the second in which a request with this id came; None if no request has such an id."""
    if len(id) != _LENGTH or not (id.isalnum() and id.isascii()):
        return None
    second = 0
    for digit in id[:_SECOND_LENGTH]:
        second = second * 62 + _VALUES[digit]
    return second
