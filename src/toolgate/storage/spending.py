"""Store what keys have spent, by period."""

from collections.abc import Iterable, Mapping

from toolgate.storage.database import CommitUncertain, Database, SqlConnection

_ADD = """
INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET amount = spending.amount + excluded.amount
"""


class SpendingStore:
    """Adds up what keys spend; a sum that was returned survives a crash."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._doubtful: tuple[CommitUncertain, Mapping[tuple[str, str], float]] | None = None
        self._counted: Mapping[tuple[str, str], float] = {}

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        """Add amounts, all or none, and return the new sums; after GatewayOverloaded the caller passes them again."""
        if self._doubtful is not None:
            # The last call raised CommitUncertain, and its amounts are among these again: if they were added after all,
            # only what has come since is added now.
            uncertain, doubtful = self._doubtful
            if await self._database.was_committed(uncertain):
                self._counted = doubtful
            self._doubtful = None
        counted = self._counted
        rows = [(key, period, amount - counted.get((key, period), 0.0)) for (key, period), amount in amounts.items()]

        def write(db: SqlConnection) -> dict[tuple[str, str], float]:
            db.executemany(_ADD, rows)
            one = "SELECT amount FROM spending WHERE key = ? AND period = ?"
            return {(key, period): db.execute(one, (key, period)).fetchone()[0] for key, period, _ in rows}

        try:
            sums = await self._database.change(write)
        except CommitUncertain as uncertain:
            self._doubtful = (uncertain, amounts)
            raise
        self._counted = {}
        return sums

    async def sums(self, labels: Iterable[str]) -> dict[tuple[str, str], float]:
        """Return the sums of all keys in these periods."""
        wanted = tuple(labels)

        def read(db: SqlConnection) -> dict[tuple[str, str], float]:
            one = "SELECT key, amount FROM spending WHERE period = ?"
            return {(key, label): amount for label in wanted for key, amount in db.execute(one, (label,))}

        return await self._database.read(read)
