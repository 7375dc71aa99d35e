"""How much may leave: requests and bytes, counted by account. Knows no request."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from msgspec import Struct

from toolgate.tools.egress.http import MIB, Refused

_REMEMBERED = 10_000


class Budget(Protocol):
    """Is asked before every hop; raises Refused when enough is enough."""

    def spend(self, account: str, sent: int) -> None:
        """Charge one request and the bytes that it sends."""


class _Spent(Struct, frozen=True):
    """What an account has spent since its window began."""

    since: float
    requests: int = 0
    sent: int = 0


class Allowance:
    """The same allowance for every account, new after each `window` of seconds."""

    def __init__(
        self,
        requests: int = 1000,
        sent_bytes: int = 32 * MIB,
        window: float = 3600.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._requests = requests
        self._bytes = sent_bytes
        self._window = window
        self._now = now
        self._spent: OrderedDict[str, _Spent] = OrderedDict()

    def spend(self, account: str, sent: int) -> None:
        """Charge the account, or refuse and charge nothing."""
        now = self._now()
        spent = self._spent.get(account)
        if spent is None or now - spent.since > self._window:
            spent = _Spent(now)
        if spent.requests + 1 > self._requests:
            raise Refused(f"no more requests for now: {self._requests} are allowed in {self._window:g} s")
        if spent.sent + sent > self._bytes:
            raise Refused(f"too much to send: {self._bytes} bytes are allowed in {self._window:g} s")
        self._spent[account] = _Spent(spent.since, spent.requests + 1, spent.sent + sent)
        self._spent.move_to_end(account)
        if len(self._spent) > _REMEMBERED:  # the longest silent one
            self._spent.popitem(last=False)
