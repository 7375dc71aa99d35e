"""Keep budgets that several nodes share: reservations are stored in the database.

The same rule as for `LocalBudgets`, over all nodes: concurrent requests exceed a budget by one of them at most. A request
of a key with a budget therefore waits for the database; without it none is admitted, because its cost would be lost.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.conversation.random_ids import random_suffix
from toolgate.limits.local_budgets import BudgetReservation, LocalBudgets
from toolgate.limits.policy import KeyBudget, Period

# The id of a reservation, its key, the labels of the periods, and the cost.
Settlement: TypeAlias = tuple[str, str, Sequence[str], float]

_RETRY_SECONDS = 1.0


class ReservationStoreProtocol(Protocol):
    """Stores the reservations of all nodes; every change is atomic."""

    async def reserve(
        self, id: str, key: str, period: str, budget: float, cost: float, settled: Sequence[Settlement]
    ) -> tuple[bool, float]:
        """Settle these, then reserve a cost if enough is left; return whether it was, and what is spent."""

    async def settle(self, settled: Sequence[Settlement]) -> None:
        """Delete these reservations and add their costs; those that are settled already are skipped."""


class SharedBudgets:
    """Budgets whose reservations are stored in the database."""

    def __init__(self, local: LocalBudgets, store: ReservationStoreProtocol) -> None:
        self._local = local
        self._store = store
        self._unsettled: dict[str, Settlement] = {}
        self._settling: asyncio.Task[None] | None = None
        self._reserving: set[asyncio.Future[tuple[bool, float]]] = set()

    async def open(self) -> None:
        """Read what was spent before."""
        await self._local.open()

    async def refresh(self) -> None:
        """Read again what was spent."""
        await self._local.refresh()

    def spent(self, key: str, period: Period) -> float:
        """Return what a key has spent in the current period, as far as this node knows."""
        return self._local.spent(key, period)

    def renews_in(self, budget: KeyBudget) -> float | None:
        """Return the seconds until the next period; None if there is none."""
        return self._local.renews_in(budget)

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent without a reservation."""
        self._local.spend(key, cost)

    def note_cost(self, key: str, cost: float) -> None:
        """Note what a request of this key has cost."""
        self._local.note_cost(key, cost)

    async def reserve(self, key: str, budget: KeyBudget, cost: float) -> BudgetReservation | None:
        """Reserve what a request may cost; None if that is more than is left of the budget now.

        What this node has yet to settle is settled in the same transaction, and what its requests cost beyond their
        reservations is written before: a client that sends one request after the other finds its last one counted.
        """
        await self._local.open()
        await self._local.write_spending(key)
        reservation = BudgetReservation(key, budget, self._local.expected_cost(key, cost), id=random_suffix(24))
        settled, period = tuple(self._unsettled.values()), self._local.label(budget.period)
        reserving = asyncio.ensure_future(
            self._store.reserve(reservation.id, key, period, budget.amount, reservation.amount, settled)
        )
        self._reserving.add(reserving)
        reserving.add_done_callback(self._reserving.discard)
        try:
            granted, spent = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            # The database finishes what it has begun: it would stay reserved until it expires.
            reserving.add_done_callback(lambda _: self.settle(reservation, 0.0))
            raise
        self._forget(settled)
        self._local.set_written({(key, period): spent})
        return reservation if granted else None

    def settle(self, reservation: BudgetReservation, cost: float) -> None:
        """Replace a reservation by the cost of its request; a second time does nothing."""
        if reservation.settled:
            return
        reservation.settled = True  # the store, too, settles once: the row of a reservation is deleted with its cost
        self._local.note_cost(reservation.key, cost)
        self._unsettled[reservation.id] = (reservation.id, reservation.key, self._local.labels(), cost)
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def aclose(self) -> None:
        """Settle what is left; GatewayOverloaded if that fails."""
        if self._reserving:  # of cancelled requests, which are settled next
            await asyncio.wait(self._reserving)
        # If the cancelled write was committed, settling the same reservations again changes nothing.
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})
        if self._unsettled:
            await self._store.settle(tuple(self._unsettled.values()))
        await self._local.aclose()

    async def _settle(self) -> None:
        while self._unsettled:
            settled = tuple(self._unsettled.values())
            try:
                await self._store.settle(settled)
            except GatewayOverloaded:  # what is reserved stays so until it is settled
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._forget(settled)

    def _forget(self, settled: Sequence[Settlement]) -> None:
        for id, *_ in settled:
            self._unsettled.pop(id, None)
