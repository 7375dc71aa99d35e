"""Store what keys have used, by day or hour and model: sums that only grow. Knows nothing of requests or prices."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.responses import Write

By: TypeAlias = Literal["key", "model", "day", "hour"]
# The columns by which sums may be grouped.
BY: tuple[By, ...] = ("key", "model", "day", "hour")

SUMS = ("requests", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "estimated", "cost", "errors")
_TABLES = {"day": "usage_sums", "hour": "usage_hours"}


def _adding(unit: str) -> str:
    table = _TABLES[unit]
    grown = ", ".join([f"{name} = {table}.{name} + excluded.{name}" for name in SUMS])
    return f"""
INSERT INTO {table} ({unit}, key, model, {", ".join(SUMS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT ({unit}, key, model) DO UPDATE SET {grown}
"""  # noqa: S608 - constants


_ADD_DAY, _ADD_HOUR = _adding("day"), _adding("hour")


class UsagePeriodTotal(Struct):
    """What one key has used of one model on one day, or in one hour, of UTC.

    `estimated` counts the requests whose tokens were estimated, `errors` those that failed, with or without an answer.
    """

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
    errors: int = 0


class UsageStore:
    """Adds up what keys use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(self, days: Iterable[UsagePeriodTotal], hours: Iterable[UsagePeriodTotal] = ()) -> Write:
        """Return the write that adds these to what is stored; in `hours` the field `day` names an hour."""
        by_day, by_hour = [astuple(one) for one in days], [astuple(one) for one in hours]

        def write(db: SqlConnection) -> None:
            db.executemany(_ADD_DAY, by_day)
            if by_hour:
                db.executemany(_ADD_HOUR, by_hour)

        return write

    async def sums(
        self, by: Sequence[By], *, key: str | None = None, since: str | None = None, until: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the sums by these columns, of one key or all, from one day or hour to another, both included."""
        names = [name for name in BY if name in by]
        unit = "hour" if "hour" in by else "day"
        filters = [("key =", key), (f"{unit} >=", since), (f"{unit} <=", until)]
        conditions = [(condition, value) for condition, value in filters if value is not None]
        where = " AND ".join([f"{condition} ?" for condition, _ in conditions]) or "1 = 1"
        columns = ", ".join([*names, *[f"sum({name})" for name in SUMS]])
        # Without GROUP BY there is one row of sums even for an empty table; HAVING leaves that out.
        grouped = f" GROUP BY {', '.join(names)} ORDER BY {', '.join(names)}" if names else " HAVING count(*) > 0"
        text = f"SELECT {columns} FROM {_TABLES[unit]} WHERE {where}{grouped}"  # noqa: S608 - names of columns
        values = tuple([value for _, value in conditions])

        def read(db: SqlConnection) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            for row in db.execute(text, values).fetchall():
                sums = dict(zip(SUMS, row[len(names) :], strict=True))
                # In PostgreSQL the sum of BIGINT is a NUMERIC, which comes as a Decimal.
                whole = {name: int(value) for name, value in sums.items() if name != "cost"}
                found.append({**dict(zip(names, row, strict=False)), **whole, "cost": round(float(sums["cost"]), 6)})
            return found

        return await self._database.read(read)
