"""What keys have used, by day and model: sums that only grow. Knows nothing of requests or prices."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Connection, Database
from toolgate.storage.responses import Write

By: TypeAlias = Literal["key", "model", "day"]
BY: tuple[By, ...] = ("key", "model", "day")
"""What sums may be told by."""

SUMS = ("requests", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "estimated", "cost")
_GROWN = ", ".join([f"{name} = usage_sums.{name} + excluded.{name}" for name in SUMS])
_ADD = f"""
INSERT INTO usage_sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET {_GROWN}
"""  # noqa: S608 - constants


class Used(Struct):
    """What one key has used of one model on one day of UTC; `estimated` counts the requests nobody counted tokens of."""

    day: str
    key: str
    model: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: int = 0
    cost: float = 0.0


class UsageStore:
    """Adds up what keys use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(self, used: Iterable[Used]) -> Write:
        """Adds these to what is there."""
        rows = [astuple(one) for one in used]
        return lambda db: db.executemany(_ADD, rows)

    async def sums(
        self, by: Sequence[By], *, key: str | None = None, since: str | None = None, until: str | None = None
    ) -> list[dict[str, Any]]:
        """The sums by these, of one key or all, from one day to another, both included."""
        names = [name for name in BY if name in by]
        text, values = _question(names, [("key =", key), ("day >=", since), ("day <=", until)])

        def read(db: Connection) -> list[dict[str, Any]]:
            return [_told(names, row) for row in db.execute(text, values).fetchall()]

        return await self._database.do(read)


def _question(names: Sequence[str], asked: Iterable[tuple[str, str | None]]) -> tuple[str, tuple[str, ...]]:
    conditions = [(words, value) for words, value in asked if value is not None]
    where = " AND ".join([f"{words} ?" for words, _ in conditions]) or "1 = 1"
    told = ", ".join([*names, *[f"sum({name})" for name in SUMS]])
    grouped = f" GROUP BY {', '.join(names)} ORDER BY {', '.join(names)}" if names else " HAVING count(*) > 0"
    text = f"SELECT {told} FROM usage_sums WHERE {where}{grouped}"  # noqa: S608 - names of columns
    return text, tuple([value for _, value in conditions])


def _told(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """A row by its names; a sum of whole numbers may come as a type of its own."""
    sums = dict(zip(SUMS, row[len(names) :], strict=True))
    whole = {name: int(value) for name, value in sums.items() if name != "cost"}
    return {**dict(zip(names, row, strict=False)), **whole, "cost": round(float(sums["cost"]), 6)}
