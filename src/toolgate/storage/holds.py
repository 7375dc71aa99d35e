"""What keys hold back of their budgets while their requests run, and what those have cost: one book for all nodes.

A hold is a row that is deleted by whoever settles it, in the transaction that adds its cost: it is never settled twice,
however often that is tried. One whose node died holds nothing after a while, yet whoever comes late can still pay.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from toolgate.storage.database import Connection, Database
from toolgate.storage.sightings import Jumps

LEASE = 900.0
"""Seconds after which a hold holds nothing back any more: its node has died, or its answer is very long."""

KEPT = 7 * 24 * 3600.0
"""Seconds for which it can be settled after that."""

Settlement: TypeAlias = tuple[str, str, Sequence[str], float]
"""The id of a hold, its key, the labels of the periods, and what it has cost."""

_ADD = """
INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET amount = spending.amount + excluded.amount
"""
_SPENT = "SELECT amount FROM spending WHERE key = ? AND period = ?"
_HELD = "SELECT count(*), coalesce(sum(amount), 0) FROM budget_holds WHERE key = ? AND expires >= ?"
_HOLD = "INSERT INTO budget_holds (id, key, amount, expires) VALUES (?, ?, ?, ?)"


class BudgetHolds:
    """The book of holds (`toolgate.limits.vault.Book`)."""

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
        self._jumps = Jumps(now, steady)

    async def take(
        self, id: str, key: str, period: str, budget: float, cost: float, settled: Sequence[Settlement]
    ) -> tuple[bool, float]:
        """Settle these, then hold back a cost if the budget has room for it: whether it had, and what is spent.

        One that finds nobody else under way may pass the budget: otherwise the last of it could never be spent.
        """
        now = self._now()
        alive = now - self._jumps.forward(self._lease)  # nothing has ended because a clock was set forward

        def write(db: Connection) -> tuple[bool, float]:
            db.execute("DELETE FROM budget_holds WHERE expires < ?", (now - KEPT,))
            _settle(db, settled)
            spent = _first(db.execute(_SPENT, (key, period)).fetchone())
            running, held = db.execute(_HELD, (key, alive)).fetchone()
            if spent >= budget or (running and spent + held + cost > budget):
                return False, spent
            db.execute("DELETE FROM budget_holds WHERE id = ?", (id,))  # of an attempt that was made after all
            db.execute(_HOLD, (id, key, cost, now + self._lease))
            return True, spent

        return await self._database.change(write)

    async def settle(self, settled: Sequence[Settlement]) -> None:
        """Delete these holds and add what they have cost; those that are settled already are left out."""
        await self._database.change(lambda db: _settle(db, settled))


def _settle(db: Connection, settled: Sequence[Settlement]) -> None:
    for id, key, periods, cost in settled:
        if db.execute("DELETE FROM budget_holds WHERE id = ?", (id,)).rowcount and cost > 0:
            db.executemany(_ADD, [(key, period, cost) for period in periods])


def _first(row: tuple[float] | None) -> float:
    return row[0] if row else 0.0
