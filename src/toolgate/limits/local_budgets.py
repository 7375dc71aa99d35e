"""Keep what keys have spent, and reserve what their requests may cost, in one process.

Sums are kept in memory, where a request reads them without waiting, and written to the database in batches: a crash loses
the spending of about a second. What a request may cost is reserved while it runs, so that concurrent requests exceed a
budget by one of them at most.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.conversation.random_ids import random_suffix
from toolgate.limits.policy import KeyBudget, Period

# Amounts by key and by the label of a period: "2026-03-01" is a day, "2026-03" a month.
Sums: TypeAlias = dict[tuple[str, str], float]

EVER = "ever"  # the label of the period that never ends


class SpendingStoreProtocol(Protocol):
    """Stores sums, so that they survive a restart."""

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
        """Add amounts and return the new sums."""

    async def sums(self, labels: Iterable[str]) -> Sums:
        """Return the sums of these periods."""


class BudgetReservation(Struct):
    """What is reserved of a budget for one request; `id` identifies it on all nodes."""

    key: str
    budget: KeyBudget
    amount: float
    settled: bool = False
    id: str = ""


class LocalBudgets:
    """Budgets that one process keeps alone."""

    def __init__(
        self,
        spendings: SpendingStoreProtocol,
        *,
        every: float = 1.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`every` is the number of seconds whose spending is written together."""
        self._spendings = spendings
        self._every = every
        self._clock = clock
        self._sums: Sums = {}
        self._unwritten: Sums = {}
        self._reserved: dict[str, tuple[int, float]] = {}  # by key: how many requests run, and what they have reserved
        self._ids: set[str] = set()  # the reservations of this process that are not settled
        self._highest_cost: dict[str, float] = {}
        self._opening = asyncio.Lock()
        self._flushing = asyncio.Lock()
        self._labels: tuple[str, ...] = ()  # of the periods whose sums were read
        self._checked_at = 0.0
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what was spent before; later calls cost nothing until another day begins."""
        # A clock that is set back leads to a day of which an earlier process may have spent everything.
        if self._labels == self.labels():
            return
        async with self._opening:
            if self._labels == (labels := self.labels()):
                return
            try:
                await self.refresh()
            except GatewayOverloaded:
                if not self._labels:
                    raise
                self._labels = labels  # what is known stays; the next write brings the sums

    async def refresh(self) -> None:
        """Read again what was spent: `toolgate forget` deletes it from the database."""
        # While amounts are being written they are neither in `_unwritten` nor surely in the database.
        async with self._flushing:
            labels = self.labels()
            written = await self._spendings.sums(labels)
            self._sums = dict(self._unwritten)
            self.set_written(written)
            self._labels = labels

    def spent(self, key: str, period: Period) -> float:
        """Return what a key has spent in the current period."""
        return self._sums.get((key, self.label(period)), 0.0)

    async def reserve(self, key: str, budget: KeyBudget, cost: float) -> BudgetReservation | None:
        """Reserve what a request may cost; None if that is more than is left of the budget now.

        At least the highest cost so far is reserved. A request without others beside it may exceed the budget: otherwise
        the last of it could never be spent.
        """
        await self.open()
        if self.spent(key, budget.period) >= budget.amount:
            # `toolgate forget` may have deleted what was spent; if the database fails, what is known stays.
            now = asyncio.get_running_loop().time()
            if now - self._checked_at >= self._every:
                self._checked_at = now
                with suppress(GatewayOverloaded):
                    await self.refresh()
        spent, (running, reserved) = self.spent(key, budget.period), self._reserved.get(key, (0, 0.0))
        cost = self.expected_cost(key, cost)
        # Nothing is awaited between this check and the reservation, so that no other request comes in between.
        if spent >= budget.amount or (running and spent + reserved + cost > budget.amount):
            return None
        self._reserved[key] = (running + 1, reserved + cost)
        reservation = BudgetReservation(key, budget, cost, id=random_suffix(24))
        self._ids.add(reservation.id)
        return reservation

    def settle(self, reservation: BudgetReservation, cost: float) -> None:
        """Replace a reservation by the cost of its request; a second time does nothing."""
        if reservation.settled:
            return
        reservation.settled = True
        key = reservation.key
        if reservation.id in self._ids:  # the reservation of an earlier process is charged, but not counted here
            self._ids.remove(reservation.id)
            running, amount = self._reserved[key]
            # Without running requests nothing is reserved: a rest from rounding goes, too.
            self._reserved[key] = (running - 1, max(0.0, amount - reservation.amount) if running > 1 else 0.0)
        self.spend(key, cost)

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent without a reservation."""
        if cost <= 0:
            return
        self.note_cost(key, cost)
        for label in self.labels():
            at = (key, label)
            self._sums[at] = self._sums.get(at, 0.0) + cost
            self._unwritten[at] = self._unwritten.get(at, 0.0) + cost
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_later())

    def expected_cost(self, key: str, cost: float) -> float:
        """Return the cost to reserve: at least the highest of this key so far."""
        return max(cost, self._highest_cost.get(key, 0.0))

    def note_cost(self, key: str, cost: float) -> None:
        """Note what a request of this key has cost."""
        self._highest_cost[key] = max(cost, self._highest_cost.get(key, 0.0))

    def set_written(self, sums: Mapping[tuple[str, str], float]) -> None:
        """Take over the sums of the database, and add what is not yet written."""
        for at, amount in sums.items():
            self._sums[at] = amount + self._unwritten.get(at, 0.0)

    def label(self, period: Period) -> str:
        """Return the label of the current period."""
        return _labels(self._clock())[period]

    def labels(self) -> tuple[str, ...]:
        """Return the labels of all current periods."""
        return tuple(_labels(self._clock()).values())

    def renews_in(self, budget: KeyBudget) -> float | None:
        """Return the seconds until the next period; None if there is none."""
        now = self._clock()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        match budget.period:
            case "day":
                return (midnight + timedelta(days=1) - now).total_seconds()
            case "month":
                # No month has more than 31 days, so the 1st and 32 days are always in the next one.
                next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
                return (next_month - now).total_seconds()
            case "total":
                return None

    async def flush(self) -> None:
        """Write what is not yet written; after GatewayOverloaded it is written next time."""
        async with self._flushing:
            amounts, self._unwritten = self._unwritten, {}
            if not amounts:
                return
            try:
                sums = await self._spendings.add(amounts)
            except GatewayOverloaded:
                # Added, not assigned: other requests have spent something while this was awaited.
                for at, amount in amounts.items():
                    self._unwritten[at] = self._unwritten.get(at, 0.0) + amount
                raise
            self.set_written(sums)  # other processes may write to the same database

    async def write_spending(self, key: str) -> None:
        """Write now if something of this key is not yet written; GatewayOverloaded if that fails."""
        # A write that is under way may have something of this key, so the lock is waited for.
        if any(name == key for name, _ in self._unwritten) or self._flushing.locked():
            # A cancelled write may or may not have been committed.
            await asyncio.shield(asyncio.ensure_future(self.flush()))

    async def aclose(self) -> None:
        """Write what is not yet written; GatewayOverloaded if that fails."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
        await self.flush()

    async def _write_later(self) -> None:
        while self._unwritten:
            await asyncio.sleep(self._every)
            try:
                # A cancelled write may or may not have been committed.
                await asyncio.shield(asyncio.ensure_future(self.flush()))
            except GatewayOverloaded:  # the amounts are written next time
                continue


def _labels(now: datetime) -> dict[Period, str]:
    day = now.date().isoformat()
    return {"day": day, "month": day[:7], "total": EVER}
