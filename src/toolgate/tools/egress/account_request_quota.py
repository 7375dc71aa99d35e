"""Limit how many requests and bytes an account may send. Knows no request."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from msgspec import Struct

from toolgate.tools.egress.http import MIB, EgressRefused

# How many times the allowance of one session a caller has for all sessions together: clients invent names of sessions.
SESSIONS = 10
# Accounts that are remembered; each name that a client invents is one.
_MAX_ACCOUNTS = 10_000


class EgressBudget(Protocol):
    """Charged before every hop; raises EgressRefused when the budget is spent."""

    def spend(self, account: str, sent: int) -> None:
        """Charge one request and the bytes that it sends."""


class _Spent(Struct, frozen=True):
    """What an account has sent since its window began."""

    since: float
    requests: int = 0
    sent: int = 0


class EgressQuota:
    """The same allowance for every account and for every caller's accounts together, new after each `window` of seconds.

    An account is a caller, or a caller, a slash and a session.
    """

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
        """Charge the account and its caller, or refuse and charge neither."""
        now = self._now()
        charged: dict[str, _Spent] = {}
        for name, times in ((account, 1), (f"{account.partition('/')[0]}/", SESSIONS)):
            spent = self._spent.get(name)
            if spent is None or now - spent.since > self._window:
                spent = _Spent(now)
            requests, size = self._requests * times, self._bytes * times
            if spent.requests + 1 > requests:
                raise EgressRefused(f"no more requests for now: {requests} are allowed in {self._window:g} s")
            if spent.sent + sent > size:
                raise EgressRefused(f"too much to send: {size} bytes are allowed in {self._window:g} s")
            charged[name] = _Spent(spent.since, spent.requests + 1, spent.sent + sent)
        for name, spent in charged.items():
            self._spent[name] = spent
            self._spent.move_to_end(name)
        while len(self._spent) > _MAX_ACCOUNTS:  # drop those that were idle for the longest
            self._spent.popitem(last=False)


class UnlimitedEgress:
    """No limit, for requests that are bounded elsewhere."""

    def spend(self, account: str, sent: int) -> None:
        """Charge nothing."""
