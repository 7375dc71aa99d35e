"""Count what keys use: the interface of counters, and those of one process.

What a request may use is reserved at its start and settled at its end. A reservation is all or nothing: a request that
one limit refuses uses up none of the others.
"""

import time
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.limits.policy import KeyLimits
from toolgate.limits.sliding_window import SlidingWindow

LimitName: TypeAlias = Literal["requests", "tokens", "concurrency"]


class LimitState(Struct, frozen=True):
    """The state of one limit; `reset` is the number of seconds until nothing of it is used."""

    limit: int
    remaining: int
    reset: float


class RateLimitReservation(Struct):
    """What is reserved for one request until it is settled."""

    key: str
    tokens: int
    slot: int = -1  # in which the tokens were counted; none if tokens are not limited
    id: str = ""  # under which several nodes know it
    settled: bool = False


class RateLimitResult(Struct, frozen=True):
    """A reservation, or the limit that refused it and the seconds after which it may succeed."""

    reservation: RateLimitReservation | None
    refused: LimitName | None = None
    retry_after: float = 0.0
    requests: LimitState | None = None
    tokens: LimitState | None = None


class Counters(Protocol):
    """Counts what keys use."""

    async def reserve(self, key: str, limits: KeyLimits, tokens: int) -> RateLimitResult:
        """Reserve one request and so many tokens, if every limit allows."""

    def settle(self, reservation: RateLimitReservation, tokens: int) -> None:
        """End a reservation whose request used so many tokens; a second time does nothing."""

    def charge(self, key: str, tokens: int) -> None:
        """Count tokens that were used without a reservation, by work that continued after its request."""

    async def aclose(self) -> None:
        """Close what is open."""


class _KeyUse:
    """What one key uses."""

    __slots__ = ("requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = SlidingWindow()
        self.tokens = SlidingWindow()
        self.running = 0


class LocalCounters:
    """Counters of this process alone: exact, and lost when it ends."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._by_key: dict[str, _KeyUse] = {}

    async def reserve(self, key: str, limits: KeyLimits, tokens: int) -> RateLimitResult:
        """Reserve one request and so many tokens, if every limit allows."""
        now, use = self._clock(), self._use_of(key)
        use.requests.slide(now)
        use.tokens.slide(now)
        # More than the limit would never fit: such a request is admitted when nothing else is reserved.
        amount = min(tokens, limits.tokens_per_minute)
        refused, retry_after = _exceeded(use, limits, amount, now)
        reservation = None
        if refused is None:
            reservation = RateLimitReservation(key, amount)
            use.running += 1
            if limits.requests_per_minute:
                use.requests.add(now, 1)
            if limits.tokens_per_minute:
                reservation.slot = use.tokens.add(now, amount)
        requests = _state(use.requests, limits.requests_per_minute, now)
        return RateLimitResult(
            reservation, refused, retry_after, requests, _state(use.tokens, limits.tokens_per_minute, now)
        )

    def settle(self, reservation: RateLimitReservation, tokens: int) -> None:
        """End a reservation whose request used so many tokens; a second time does nothing."""
        if reservation.settled:
            return
        reservation.settled = True
        use = self._use_of(reservation.key)
        use.running -= 1
        if reservation.slot < 0:  # the key had no limit of tokens when the request began
            return
        now = self._clock()
        use.tokens.slide(now)
        # What was not used returns to the slot that it came from; what was used in addition counts from now on.
        if tokens < reservation.tokens:
            use.tokens.give_back(reservation.slot, reservation.tokens - tokens)
        elif tokens > reservation.tokens:
            use.tokens.add(now, tokens - reservation.tokens)

    def charge(self, key: str, tokens: int) -> None:
        """Count tokens that were used without a reservation."""
        now, window = self._clock(), self._use_of(key).tokens
        window.slide(now)
        window.add(now, tokens)

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""

    def running(self, key: str) -> int:
        """Return the number of running requests of a key."""
        return self._use_of(key).running

    def _use_of(self, key: str) -> _KeyUse:
        use = self._by_key.get(key)
        if use is None:
            use = self._by_key[key] = _KeyUse()
        return use


def _exceeded(use: _KeyUse, limits: KeyLimits, amount: int, now: int) -> tuple[LimitName | None, float]:
    if limits.concurrency and use.running >= limits.concurrency:
        return "concurrency", 1.0  # a guess: when a running request ends is not known
    limit = limits.requests_per_minute
    if limit and use.requests.used >= limit:
        return "requests", use.requests.fits_in(now, 1, limit)
    limit = limits.tokens_per_minute
    # The second condition is for an amount of 0, which fits under any limit, but not once the limit is reached.
    if limit and (use.tokens.used + amount > limit or use.tokens.used >= limit):
        return "tokens", use.tokens.fits_in(now, max(amount, 1), limit)
    return None, 0.0


def _state(window: SlidingWindow, limit: int, now: int) -> LimitState | None:
    return LimitState(limit, max(0, limit - window.used), window.empty_in(now)) if limit else None
