"""Read a page of a table that is ordered by time, with any filters, by looking at a bounded number of rows.

Rows are found by an index that starts with a filtered column and goes on with `created`. Filters without an index, or beside
the one whose index is used, are applied to the rows that the index finds, of which at most `ROWS` are looked at: a page
may then have fewer rows than were asked for, and has the place to go on. The tables have the columns `id` and `created`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from toolgate.storage.database import SqlConnection

# How many rows one page looks at, at most.
ROWS = 10_000

# Indexes are compared by how far back their next so many rows reach.
_PROBE = 1_000

# The time and the id of a row.
Place: TypeAlias = tuple[float, str]


class SqlCondition(Struct, frozen=True):
    """A condition on a row; `unindexed` is the same in a form that uses no index, and is given if there is one.

    An index has the column of the condition before `created`. Of several conditions with an index one is chosen here, since
    SQLite knows nothing of how many rows each of them finds. The condition on the `owner` has an index, and the row behind
    which a next page begins fulfils it: an owner is never given the id of another's row.
    """

    sql: str
    values: tuple[Any, ...] = ()
    unindexed: str | None = None
    owner: bool = False


class TimeRange(Struct, frozen=True):
    """A time span, both ends included."""

    since: float | None = None
    until: float | None = None


class KeysetPage(Struct, frozen=True):
    """The rows of a page, each with its place before the columns; if there may be more, `last` is where these begin."""

    rows: list[Sequence[Any]]
    last: Place | None = None


class KeysetQuery(Struct, frozen=True):
    """A list: its table, the columns that are read, and the conditions on its rows."""

    table: str
    columns: str
    conditions: tuple[SqlCondition, ...] = ()
    times: TimeRange = TimeRange()

    def page(
        self, db: SqlConnection, start: Place | None, limit: int, *, newest_first: bool = True, rows: int = ROWS
    ) -> KeysetPage:
        """Return at most `limit` rows after the place `start`, and look at `rows` rows at most."""
        scan = _Scan(self, newest_first, start)
        indexed = [one for one in self.conditions if one.unindexed is not None]
        # One index, or none but that of time, finds exactly the rows of the page: nothing is looked at in vain.
        if len(indexed) == len(self.conditions) <= 1:
            return _ended(scan.rows(db, self.conditions, limit + 1), limit)
        base = scan.rarest(db, indexed)
        owner = next((one for one in indexed if one.owner), base)
        edge = scan.time_after(db, base, rows)
        found = scan.rows(db, self._beside(base), limit + 1, edge)
        if base is not owner and len(found) <= limit and edge is not None:
            # The row at `edge` may be another owner's: so many rows of this owner are looked at instead.
            base, edge = owner, scan.time_after(db, owner, rows)
            found = scan.rows(db, self._beside(base), limit + 1, edge)
        if len(found) > limit or edge is None:
            return _ended(found, limit)
        # The page is not full and the table goes on behind `edge`: the next page begins there.
        return KeysetPage(found, scan.last_at(db, base, edge))

    def _beside(self, base: SqlCondition | None) -> list[SqlCondition]:
        """Return all conditions, with `base` as the only one that uses an index."""
        # SQLite might choose the index of another, which may find far more rows.
        return [
            one if one is base or one.unindexed is None else SqlCondition(one.unindexed, one.values)
            for one in self.conditions
        ]


def _ended(found: list[Sequence[Any]], limit: int) -> KeysetPage:
    rows = found[:limit]
    return KeysetPage(rows, (rows[-1][0], rows[-1][1]) if len(found) > limit else None)


class _Scan(Struct, frozen=True):
    """Reads the rows of a query from a place on, in one direction."""

    query: KeysetQuery
    newest_first: bool
    start: Place | None

    def rows(
        self, db: SqlConnection, conditions: Sequence[SqlCondition], limit: int, edge: float | None = None
    ) -> list[Sequence[Any]]:
        """Return the first rows that fit, up to the time `edge`, which is included."""
        where, values = self._where(conditions, edge)
        direction = "DESC" if self.newest_first else "ASC"
        text = (
            f"SELECT created, id, {self.query.columns} FROM {self.query.table} WHERE {where} "  # noqa: S608 - constants
            f"ORDER BY created {direction}, id {direction} LIMIT ?"
        )
        return db.execute(text, (*values, limit)).fetchall()

    def time_after(self, db: SqlConnection, base: SqlCondition | None, rows: int) -> float | None:
        """Return the time of the row after which so many were looked at, None if there are fewer; reads an index alone."""
        where, values = self._where([base] if base else [])
        direction = "DESC" if self.newest_first else "ASC"
        text = f"SELECT created FROM {self.query.table} WHERE {where} ORDER BY created {direction} LIMIT 1 OFFSET ?"  # noqa: S608 - constants
        row = db.execute(text, (*values, rows - 1)).fetchone()
        return None if row is None else row[0]

    def last_at(self, db: SqlConnection, base: SqlCondition | None, edge: float) -> Place:
        """Return the place of the last row at this time."""
        where, values = self._where([*([base] if base else []), SqlCondition("created = ?", (edge,))])
        last = "min" if self.newest_first else "max"
        row = db.execute(f"SELECT {last}(id) FROM {self.query.table} WHERE {where}", values).fetchone()  # noqa: S608 - constants
        return edge, row[0]

    def rarest(self, db: SqlConnection, indexed: Sequence[SqlCondition]) -> SqlCondition | None:
        """Return the condition that the fewest rows fit from here on: the next of them reach furthest."""
        if len(indexed) <= 1:
            return indexed[0] if indexed else None
        reached: list[tuple[float, SqlCondition]] = []
        for one in indexed:
            time = self.time_after(db, one, _PROBE)
            if time is None:
                return one
            reached.append((time if self.newest_first else -time, one))
        return min(reached, key=lambda pair: pair[0])[1]

    def _where(self, conditions: Sequence[SqlCondition], edge: float | None = None) -> tuple[str, list[Any]]:
        texts, values = [one.sql for one in conditions], [value for one in conditions for value in one.values]
        since, until = self.query.times.since, self.query.times.until
        if self.start is not None:
            sign = "<" if self.newest_first else ">"
            # The first comparison gives the index its range; the OR alone would give it none.
            texts.append(f"created {sign}= ? AND (created {sign} ? OR id {sign} ?)")
            values += [self.start[0], *self.start]
        bounds = [(">=", since), ("<=", until), (">=" if self.newest_first else "<=", edge)]
        for sign, bound in bounds:
            if bound is not None:
                texts.append(f"created {sign} ?")
                values.append(bound)
        return " AND ".join(texts) or "1 = 1", values
