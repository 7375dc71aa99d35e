"""What keys have spent, by period."""

from collections.abc import Iterable, Mapping

from toolgate.storage.database import Connection, Database

_ADD = """
INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET amount = spending.amount + excluded.amount
"""


class SpendingStore:
    """Adds up what keys spend; a sum that was reported survives a crash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        """Add amounts, all or none; the new sums."""
        rows = [(key, period, amount) for (key, period), amount in amounts.items()]

        def write(db: Connection) -> dict[tuple[str, str], float]:
            db.executemany(_ADD, rows)
            one = "SELECT amount FROM spending WHERE key = ? AND period = ?"
            return {(key, period): db.execute(one, (key, period)).fetchone()[0] for key, period, _ in rows}

        return await self._database.change(write)

    async def sums(self, labels: Iterable[str]) -> dict[tuple[str, str], float]:
        """The sums of all keys in these periods."""
        wanted = tuple(labels)

        def read(db: Connection) -> dict[tuple[str, str], float]:
            one = "SELECT key, amount FROM spending WHERE period = ?"
            return {(key, label): amount for label in wanted for key, amount in db.execute(one, (label,))}

        return await self._database.do(read)
