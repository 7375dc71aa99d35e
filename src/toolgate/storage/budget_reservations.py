"""Store what keys have reserved of their budgets while their requests run, and what those have cost, for all nodes.

A reservation is a row that is deleted in the transaction that adds its cost: it is never settled twice, however often that
is tried. A reservation whose node died counts no more after a while, yet a late settlement is still charged.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ClockJumps

# Seconds after which a reservation counts no more: its node has died, or its answer is very long.
LEASE = 900.0

# Seconds for which it can be settled after that: a background run may wait for a person for 30 days, more than once, and is
# charged at its end. Only the reservations of nodes that died are ever as old.
KEPT = 400 * 24 * 3600.0

# The id of a reservation, its key, the labels of the periods, and what the request has cost.
Settlement: TypeAlias = tuple[str, str, Sequence[str], float]

_ADD = """
INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET amount = spending.amount + excluded.amount
"""
_SPENT = "SELECT amount FROM spending WHERE key = ? AND period = ?"
_HELD = "SELECT count(*), coalesce(sum(amount), 0) FROM budget_holds WHERE key = ? AND expires >= ?"
_HOLD = "INSERT INTO budget_holds (id, key, amount, expires) VALUES (?, ?, ?, ?)"


class BudgetReservationStore:
    """Stores reservations (`toolgate.limits.shared_budgets`)."""

    def __init__(
        self,
        database: Database,
        *,
        lease: float = LEASE,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._lease = lease
        self._now = now
        self._jumps = ClockJumps(now, steady)

    async def reserve(
        self, id: str, key: str, period: str, budget: float, cost: float, settled: Sequence[Settlement]
    ) -> tuple[bool, float]:
        """Settle these, then reserve a cost if the budget has room for it; returns whether it had, and what is spent.

        A request that finds no other running may exceed the budget: otherwise the last of it could never be spent.
        """
        now = self._now()
        alive = now - self._jumps.forward(self._lease)  # nothing has ended because a clock was set forward

        def write(db: SqlConnection) -> tuple[bool, float]:
            db.execute("DELETE FROM budget_holds WHERE expires < ?", (now - KEPT,))
            # Before the budget is looked at: what has ended is counted as spent, and no more as reserved.
            _settle(db, settled)
            [spent] = db.execute(_SPENT, (key, period)).fetchone() or [0.0]
            running, held = db.execute(_HELD, (key, alive)).fetchone()
            if spent >= budget or (running and spent + held + cost > budget):
                return False, spent
            db.execute("DELETE FROM budget_holds WHERE id = ?", (id,))  # of an attempt that was made after all
            db.execute(_HOLD, (id, key, cost, now + self._lease))
            return True, spent

        return await self._database.change(write)

    async def settle(self, settled: Sequence[Settlement]) -> None:
        """Delete these reservations and add what they have cost; those that are settled already are left out."""
        await self._database.change(lambda db: _settle(db, settled))


def _settle(db: SqlConnection, settled: Sequence[Settlement]) -> None:
    for id, key, periods, cost in settled:
        if db.execute("DELETE FROM budget_holds WHERE id = ?", (id,)).rowcount and cost > 0:
            db.executemany(_ADD, [(key, period, cost) for period in periods])
