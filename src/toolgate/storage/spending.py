"""What keys have spent, by period."""

from collections.abc import Iterable, Mapping

from toolgate.storage.database import Connection, Database, Unsettled

_ADD = """
INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET amount = spending.amount + excluded.amount
"""


class SpendingStore:
    """Adds up what keys spend; a sum that was reported survives a crash."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._doubtful: tuple[Unsettled, Mapping[tuple[str, str], float]] | None = None
        self._counted: Mapping[tuple[str, str], float] = {}

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        """Add amounts, all or none; the new sums. Whoever hears Overloaded gives the same amounts again with the next."""
        await self._settle()
        counted = self._counted
        rows = [(key, period, amount - counted.get((key, period), 0.0)) for (key, period), amount in amounts.items()]

        def write(db: Connection) -> dict[tuple[str, str], float]:
            db.executemany(_ADD, rows)
            one = "SELECT amount FROM spending WHERE key = ? AND period = ?"
            return {(key, period): db.execute(one, (key, period)).fetchone()[0] for key, period, _ in rows}

        try:
            sums = await self._database.change(write)
        except Unsettled as unsettled:
            self._doubtful = (unsettled, amounts)
            raise
        self._counted = {}
        return sums

    async def _settle(self) -> None:
        """Know what was added although its caller heard otherwise, and will give it again."""
        if self._doubtful is not None:
            unsettled, amounts = self._doubtful
            if await self._database.was_made(unsettled):
                self._counted = amounts
            self._doubtful = None

    async def sums(self, labels: Iterable[str]) -> dict[tuple[str, str], float]:
        """The sums of all keys in these periods."""
        wanted = tuple(labels)

        def read(db: Connection) -> dict[tuple[str, str], float]:
            one = "SELECT key, amount FROM spending WHERE period = ?"
            return {(key, label): amount for label in wanted for key, amount in db.execute(one, (label,))}

        return await self._database.do(read)
