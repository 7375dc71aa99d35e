"""Counting what keys use, in this process; the port is small enough for counters that several nodes share.

Whatever a request may use is taken at its start and settled at its end, once. Taking is all or nothing: a request that
one limit refuses uses up none of the others.
"""

import time
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.limits.policy import KeyLimits
from toolgate.limits.window import Window

Which: TypeAlias = Literal["requests", "tokens", "concurrency"]


class Meter(Struct, frozen=True):
    """How one limit stands; `reset` is in how many seconds all of it is there again."""

    limit: int
    remaining: int
    reset: float


class Hold(Struct):
    """What one request has taken and must settle."""

    key: str
    tokens: int
    slot: int = -1
    id: str = ""
    settled: bool = False


class Taken(Struct, frozen=True):
    """A hold, or the limit that refused it and in how many seconds it may not."""

    hold: Hold | None
    refused: Which | None = None
    retry_after: float = 0.0
    requests: Meter | None = None
    tokens: Meter | None = None


class Counters(Protocol):
    """Counts what keys use."""

    async def take(self, key: str, limits: KeyLimits, tokens: int) -> Taken:
        """Take one request and so many tokens, if every limit allows."""

    def settle(self, hold: Hold, tokens: int) -> None:
        """The request is over and used so many tokens; a second time does nothing."""

    def charge(self, key: str, tokens: int) -> None:
        """Tokens were used by something that holds nothing: what went on after its request was over."""

    async def aclose(self) -> None:
        """Let go of what is open."""


class _Tally:
    """What one key uses."""

    __slots__ = ("requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.running = 0


class LocalCounters:
    """Counters of this process alone: exact, and forgotten when it ends."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._tallies: dict[str, _Tally] = {}

    async def take(self, key: str, limits: KeyLimits, tokens: int) -> Taken:
        """Take one request and so many tokens, if every limit allows."""
        now, tally = self._clock(), self._tally(key)
        tally.requests.slide(now)
        tally.tokens.slide(now)
        # More than the limit would never fit: it is let in when nothing else is there, and settled like the rest.
        amount = min(tokens, limits.tokens_per_minute)
        refused, retry_after = _refusal(tally, limits, amount, now)
        hold = None
        if refused is None:
            hold = Hold(key, amount)
            tally.running += 1
            if limits.requests_per_minute:
                tally.requests.add(now, 1)
            if limits.tokens_per_minute:
                hold.slot = tally.tokens.add(now, amount)
        requests = _meter(tally.requests, limits.requests_per_minute, now)
        return Taken(hold, refused, retry_after, requests, _meter(tally.tokens, limits.tokens_per_minute, now))

    def settle(self, hold: Hold, tokens: int) -> None:
        """The request is over and used so many tokens; a second time does nothing."""
        if hold.settled:
            return
        hold.settled = True
        tally = self._tally(hold.key)
        tally.running -= 1
        if hold.slot < 0:
            return
        now = self._clock()
        tally.tokens.slide(now)
        if tokens < hold.tokens:
            tally.tokens.give_back(hold.slot, hold.tokens - tokens)
        elif tokens > hold.tokens:
            tally.tokens.add(now, tokens - hold.tokens)

    def charge(self, key: str, tokens: int) -> None:
        """Tokens were used by something that holds nothing."""
        now, window = self._clock(), self._tally(key).tokens
        window.slide(now)
        window.add(now, tokens)

    async def aclose(self) -> None:
        """Let go of what is open: nothing."""

    def running(self, key: str) -> int:
        """How many requests of a key are under way."""
        return self._tally(key).running

    def _tally(self, key: str) -> _Tally:
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        return tally


def _refusal(tally: _Tally, limits: KeyLimits, amount: int, now: int) -> tuple[Which | None, float]:
    if limits.concurrency and tally.running >= limits.concurrency:
        return "concurrency", 1.0
    most = limits.requests_per_minute
    if most and tally.requests.used >= most:
        return "requests", tally.requests.fits_in(now, 1, most)
    most = limits.tokens_per_minute
    if most and (tally.tokens.used + amount > most or tally.tokens.used >= most):
        return "tokens", tally.tokens.fits_in(now, max(amount, 1), most)
    return None, 0.0


def _meter(window: Window, limit: int, now: int) -> Meter | None:
    return Meter(limit, max(0, limit - window.used), window.empty_in(now)) if limit else None
