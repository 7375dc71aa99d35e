"""What keys have spent, and whether a budget has room for one more request.

Sums are kept here, where a request finds them without waiting, and written down in batches behind its back: what a crash
can lose is the spending of about a second. What a request may cost is held back while it runs, so that many at once
pass a budget by one of them at most.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation import ids
from toolgate.conversation.errors import Overloaded
from toolgate.limits.policy import Budget, Period

Sums: TypeAlias = dict[tuple[str, str], float]
"""Amounts by key and by the label of a period."""

EVER = "ever"


class Spendings(Protocol):
    """Keeps sums where they survive a restart."""

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
        """Add amounts; the new sums."""

    async def sums(self, labels: Iterable[str]) -> Sums:
        """The sums of these periods."""


class Held(Struct):
    """What one request may spend, held back until it is over; `id` is what it is known by, here or on all nodes."""

    key: str
    budget: Budget
    amount: float
    settled: bool = False
    id: str = ""


class Purse:
    """What each key has spent and holds back."""

    def __init__(
        self, spendings: Spendings, *, every: float = 1.0, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """`every` is how many seconds of spending are written down together."""
        self._spendings = spendings
        self._every = every
        self._clock = clock
        self._sums: Sums = {}
        self._unwritten: Sums = {}
        self._held: dict[str, tuple[int, float]] = {}
        self._ids: set[str] = set()
        self._largest: dict[str, float] = {}
        self._opening = asyncio.Lock()
        self._flushing = asyncio.Lock()
        self._open = False
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what was spent before; later calls cost nothing."""
        if self._open:
            return
        async with self._opening:
            if not self._open:
                self._sums |= await self._spendings.sums(self.labels())
                self._open = True

    def spent(self, key: str, period: Period) -> float:
        """What a key has spent in the running period."""
        return self._sums.get((key, self.label(period)), 0.0)

    async def take(self, key: str, budget: Budget, cost: float) -> Held | None:
        """Hold back what a request may cost, once it is known what was spent before."""
        await self.open()
        return self.hold(key, budget, cost)

    def hold(self, key: str, budget: Budget, cost: float) -> Held | None:
        """Hold back what a request may cost; None if the budget has no room for it now.

        No request is expected to cost less than the dearest so far. One that finds nobody else under way may pass the
        budget: otherwise the last of it could never be spent.
        """
        spent, (running, held) = self.spent(key, budget.period), self._held.get(key, (0, 0.0))
        cost = self.at_least(key, cost)
        if spent >= budget.amount or (running and spent + held + cost > budget.amount):
            return None
        self._held[key] = (running + 1, held + cost)
        taken = Held(key, budget, cost, id=ids.mint(24))
        self._ids.add(taken.id)
        return taken

    def settle(self, held: Held, cost: float) -> None:
        """The request is over and has cost so much; a second time does nothing."""
        if held.settled:
            return
        held.settled = True
        if held.id in self._ids:  # one that an earlier process took is paid, but holds nothing here
            self._ids.remove(held.id)
            self._let_go(held)
        self.spend(held.key, cost)

    def _let_go(self, held: Held) -> None:
        running, amount = self._held[held.key]
        # With nobody under way nothing is held: what rounding left behind goes, too.
        self._held[held.key] = (running - 1, max(0.0, amount - held.amount) if running > 1 else 0.0)

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent."""
        if cost <= 0:
            return
        self.note(key, cost)
        for label in self.labels():
            at = (key, label)
            self._sums[at] = self._sums.get(at, 0.0) + cost
            self._unwritten[at] = self._unwritten.get(at, 0.0) + cost
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_later())

    def at_least(self, key: str, cost: float) -> float:
        """What to expect of a request: no less than the dearest of this key so far."""
        return max(cost, self._largest.get(key, 0.0))

    def note(self, key: str, cost: float) -> None:
        """A request has cost so much."""
        self._largest[key] = max(cost, self._largest.get(key, 0.0))

    def learn(self, sums: Mapping[tuple[str, str], float]) -> None:
        """These sums are written down; what is not yet comes on top."""
        for at, amount in sums.items():
            self._sums[at] = amount + self._unwritten.get(at, 0.0)

    def label(self, period: Period) -> str:
        """The name of the running period."""
        return _labels(self._clock())[period]

    def labels(self) -> tuple[str, ...]:
        """The names of all running periods."""
        return tuple(_labels(self._clock()).values())

    def renews_in(self, budget: Budget) -> float | None:
        """Seconds until a new period begins; None if none ever does."""
        return _renews_in(self._clock(), budget.period)

    async def flush(self) -> None:
        """Write down what is not yet written; Overloaded leaves it for the next time."""
        async with self._flushing:
            amounts, self._unwritten = self._unwritten, {}
            if not amounts:
                return
            try:
                sums = await self._spendings.add(amounts)
            except Overloaded:
                for at, amount in amounts.items():
                    self._unwritten[at] = self._unwritten.get(at, 0.0) + amount
                raise
            self.learn(sums)  # others may write to the same database

    async def aclose(self) -> None:
        """Write down what is left; Overloaded if that cannot be."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
        await self.flush()

    async def _write_later(self) -> None:
        while self._unwritten:
            await asyncio.sleep(self._every)
            try:
                # Broken off in the middle, nobody could tell whether the amounts were written.
                await asyncio.shield(asyncio.ensure_future(self.flush()))
            except Overloaded:  # nothing is lost: the amounts wait for the next time
                continue


def _labels(now: datetime) -> dict[Period, str]:
    day = now.date().isoformat()
    return {"day": day, "month": day[:7], "total": EVER}


def _renews_in(now: datetime, period: Period) -> float | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            return (midnight + timedelta(days=1) - now).total_seconds()
        case "month":
            next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
            return (next_month - now).total_seconds()
        case "total":
            return None
