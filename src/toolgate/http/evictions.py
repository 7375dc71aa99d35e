"""Choose the connections to close when there are too many, so that idle clients cannot keep others out.

Knows how long clients have kept their connections waiting, and from which addresses they come. It must not know sockets,
requests or callers: whether a caller has more than its share is decided when the caller is known, on the last places.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from typing import Protocol

_SCAN_SECONDS = 0.25
_CHEAP_SCAN = 64  # with no more connections a scan is never put off
_SCANNED = 8_192  # connections at most, so that a scan is a short step of the loop
_CANDIDATES = 256  # kept of a scan, so that closed connections are not kept alive by the thousand


# After how many seconds a connection may be closed in favour of a new one: without a request or with part of a head, on
# one of the last places or after its error response, with part of a body, and with responses that the client does not read.
IDLE_SECONDS, LAST_PLACE_SECONDS, BODY_SECONDS, UNREAD_SECONDS = 1.0, 0.2, 10.0, 10.0


class EvictableConnection(Protocol):
    """A connection, as far as its eviction is concerned."""

    client: tuple[str, int] | None

    def overdue_seconds(self, now: float) -> float:
        """Return for how long the connection has been evictable; 0 if it is not."""


class ConnectionEvictions:
    """Chooses connections one after the other: the most overdue of the address that has the most connections.

    After a scan that found few, the next is no earlier than a quarter of a second later, so that a flood costs little.
    """

    __slots__ = ("_candidates", "_next_scan")

    def __init__(self) -> None:
        self._candidates: list[EvictableConnection] = []
        self._next_scan = 0.0

    def choose(self, connections: Iterable[EvictableConnection], count: int, now: float) -> EvictableConnection | None:
        """Return the connection to close now, if there is one; `count` is the number of connections."""
        if (chosen := self._next(now)) is not None:
            return chosen
        if count > _CHEAP_SCAN and now < self._next_scan:
            return None
        by_address: Counter[str] = Counter()
        overdue: list[tuple[float, EvictableConnection]] = []
        for one in islice(connections, _SCANNED):
            by_address[_address(one)] += 1
            if seconds := one.overdue_seconds(now):
                overdue.append((seconds, one))
        worst = nlargest(_CANDIDATES, overdue, key=lambda entry: (by_address[_address(entry[1])], entry[0]))
        self._candidates = [one for _, one in reversed(worst)]
        self._next_scan = now if len(overdue) > _CANDIDATES else now + _SCAN_SECONDS
        return self._next(now)

    def _next(self, now: float) -> EvictableConnection | None:
        while self._candidates:
            one = self._candidates.pop()
            # It may have sent something since the scan.
            if one.overdue_seconds(now):
                return one
        return None


def _address(connection: EvictableConnection) -> str:
    return connection.client[0] if connection.client else ""
