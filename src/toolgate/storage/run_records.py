"""Store runs as people look at them: one record a run, and its timeline of steps and calls. Knows no content of them.

The record of a background run is made together with the run, and follows its state (`runs.py`). That of a foreground run
is written behind the request that makes it; its node stores again and again that it is alive, so that one whose node has
died is found, without comparing clocks that can be set (`observed_leases.py`).
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.keyset_page import ROWS, KeysetQuery, Place, SqlCondition, TimeRange
from toolgate.storage.observed_leases import ObservedLeases
from toolgate.storage.responses import Write
from toolgate.storage.runs import ENDS, State
from toolgate.storage.sql_engine import batches, placeholders

RunKind: TypeAlias = Literal["background", "foreground"]

# A foreground run of another machine that gives no sign of life while it is watched for so long is taken to be cut off.
STALE_SECONDS = 90.0

CUT_OFF = "The server stopped while this run was going on."


class RunRecord(Struct, frozen=True):
    """One run; `tools` is a JSON list, `response` the stored response that holds its content, if there is one."""

    id: str
    owner: str
    kind: RunKind
    state: State
    model: str
    created: float
    started: float | None = None
    ended: float | None = None
    steps: int = 0
    calls: int = 0
    tools: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    error: str | None = None
    response: str | None = None
    forked_run: str | None = None
    forked_step: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state in ENDS


class RunFilter(Struct, frozen=True):
    """Which runs are read; None means any."""

    owner: str | None = None
    state: str | None = None
    model: str | None = None
    times: TimeRange = TimeRange()


class RunPage(Struct, frozen=True):
    """The runs of a page, and the id of the last run that was looked at, if there may be more."""

    runs: list[RunRecord]
    last: str | None = None


_FIELDS = RunRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_INSERT = f"INSERT INTO run_records ({_COLUMNS}, node, alive, cancel) VALUES ({', '.join('?' * (len(_FIELDS) + 2))}, 0)"  # noqa: S608 - constants
_PROGRESS = ("started", "steps", "calls", "tools", "input_tokens", "output_tokens", "cost", "error")
_UPSERT = f"""
{_INSERT} ON CONFLICT (id) DO UPDATE SET
    {", ".join([f"{name} = excluded.{name}" for name in (*_PROGRESS, "state", "ended", "response", "node", "alive")])}
"""
_UPDATE = f"UPDATE run_records SET {', '.join([f'{name} = ?' for name in _PROGRESS])} WHERE id = ?"  # noqa: S608 - constants
# A client may delete a response before its run is written.
_UNLINK_DELETED = """
UPDATE run_records SET response = NULL WHERE id = ?
    AND NOT EXISTS (SELECT 1 FROM run_requests WHERE run_requests.response = run_records.response)
"""
# The owner is that of the record; an entry of a run whose record was deleted meanwhile is not stored.
_ENTRY = """
INSERT INTO run_entries (run, place, owner, entry) SELECT r.id, ?, r.owner, ? FROM run_records AS r WHERE r.id = ?
ON CONFLICT (run, place) DO UPDATE SET entry = excluded.entry
"""
_FIND = f"SELECT {_COLUMNS} FROM run_records WHERE id = :id AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)"  # noqa: S608 - constants
_BEAT = "UPDATE run_records SET alive = ? WHERE id IN (%s) RETURNING id, cancel"
_SILENT = """
SELECT id, node, alive FROM run_records
WHERE state IN ('running', 'waiting') AND kind = 'foreground' AND node <> ? ORDER BY state, created LIMIT 1000
"""
# Only if it is still as silent as when it was read: its node may have been slow.
_CUT_OFF = """
UPDATE run_records SET state = 'failed', ended = alive, error = ?
WHERE id = ? AND alive = ? AND state IN ('running', 'waiting')
"""
_CANCEL = "UPDATE run_records SET cancel = 1 WHERE id = ? AND state IN ('running', 'waiting') AND kind = 'foreground'"
_SAVE_REQUEST = """
INSERT INTO run_requests (response, owner, request) VALUES (?, ?, ?)
ON CONFLICT (response) DO UPDATE SET request = excluded.request
"""


class RunRecordStore:
    """Stores the records of runs, as one node sees them."""

    def __init__(
        self,
        database: Database,
        node: str = "",
        *,
        is_gone: Callable[[str], bool] = lambda node: False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_gone` knows nodes that have certainly ended; the runs of others are watched by the `steady` clock."""
        self.clock = clock
        self._database = database
        self._node = node
        self._is_gone = is_gone
        self._watch = ObservedLeases(steady)

    def opening(self, record: RunRecord, request: bytes | None = None, entries: Sequence[str] = ()) -> Write:
        """Return the write that stores a new run, the request from which it can be forked, and its first entries."""
        row = (*_row(record), "", 0.0)
        places = [(place, entry, record.id) for place, entry in enumerate(entries)]

        def write(db: SqlConnection) -> None:
            db.execute(_INSERT, row)
            if places:
                db.executemany(_ENTRY, places)
            if request is not None and record.response is not None:
                db.execute(_SAVE_REQUEST, (record.response, record.owner, request))

        return write

    def keeping_request(self, response: str, owner: str, request: bytes) -> Write:
        """Return the write that stores the request of a response, without its input, for a fork."""
        return lambda db: db.execute(_SAVE_REQUEST, (response, owner, request))

    def saving(self, record: RunRecord, entries: Iterable[tuple[int, str]]) -> Write:
        """Return the write that stores how far a run is, and these entries of its timeline by their places.

        The state and the end of a background run are not changed by this: they are those of the run itself.
        """
        places = [(place, entry, record.id) for place, entry in entries]
        progress = [getattr(record, name) for name in _PROGRESS]
        row = (*_row(record), self._node, self.clock())

        def write(db: SqlConnection) -> None:
            if record.kind == "background":
                db.execute(_UPDATE, (*progress, record.id))
            else:
                db.execute(_UPSERT, row)
                if record.response is not None:
                    db.execute(_UNLINK_DELETED, (record.id,))
            if places:
                db.executemany(_ENTRY, places)

        return write

    async def find(self, id: str, owner: str | None) -> RunRecord | None:
        """Return the run of this id, if this owner has it; None is any owner."""
        values = {"id": id, "owner": owner}
        rows = await self._database.read(lambda db: db.execute(_FIND, values).fetchall())
        return _record(rows[0]) if rows else None

    async def entries(self, id: str) -> list[str]:
        """Return the timeline of a run, each entry as it was stored."""
        select = "SELECT entry FROM run_entries WHERE run = ? ORDER BY place"
        return [row[0] for row in await self._database.read(lambda db: db.execute(select, (id,)).fetchall())]

    async def request(self, response: str, owner: str) -> bytes | None:
        """Return the stored request of a response, without its input."""
        select = "SELECT request FROM run_requests WHERE response = ? AND owner = ?"
        rows = await self._database.read(lambda db: db.execute(select, (response, owner)).fetchall())
        return bytes(rows[0][0]) if rows else None

    async def page(
        self, wanted: RunFilter, after: str | None, limit: int, *, newest_first: bool = True, rows: int = ROWS
    ) -> RunPage | None:
        """Return at most so many runs after the one named `after`; None if there is no such one."""
        conditions = [
            SqlCondition(f"{name} = ?", (value,), unindexed=f"{name} || '' = ?", owner=name == "owner")
            for name in ("owner", "state", "model")
            if (value := getattr(wanted, name)) is not None
        ]
        query = KeysetQuery("run_records", _COLUMNS, tuple(conditions), wanted.times)

        def read(db: SqlConnection) -> RunPage | None:
            start: Place | None = None
            if after is not None:
                found = db.execute(_FIND, {"id": after, "owner": wanted.owner}).fetchone()
                if found is None:
                    return None
                start = (_record(found).created, after)
            page = query.page(db, start, limit, newest_first=newest_first, rows=rows)
            return RunPage([_record(row[2:]) for row in page.rows], page.last[1] if page.last else None)

        return await self._database.read(read)

    async def cancel(self, id: str) -> bool:
        """Mark a foreground run to be cancelled by the node that has it; false if it has ended."""
        return await self._database.change(lambda db: db.execute(_CANCEL, (id,)).rowcount == 1)

    async def beat(self, ids: Sequence[str]) -> list[str]:
        """Store that these foreground runs of this node are alive, and return those that are to be cancelled."""
        now = self.clock()

        def write(db: SqlConnection) -> list[str]:
            rows = [row for some in batches(ids) for row in db.execute(_BEAT % placeholders(some), (now, *some))]
            return [id for id, cancel in rows if cancel]

        return await self._database.change(write)

    async def end_cut_off(self, live: Collection[str]) -> int:
        """End the foreground runs whose nodes have died, and return how many; `live` are those of this node."""
        rows = await self._database.read(lambda db: db.execute(_SILENT, (self._node,)).fetchall())
        self._watch.keep({row[0] for row in rows})
        gone = {node for node in {row[1] for row in rows} if self._is_gone(node)}
        dead = [
            (CUT_OFF, id, alive)
            for id, node, alive in rows
            if (self._watch.age(id, (node, alive)) >= STALE_SECONDS or node in gone) and id not in live
        ]
        if dead:
            await self._database.change(lambda db: db.executemany(_CUT_OFF, dead))
        return len(dead)


def _row(record: RunRecord) -> tuple[Any, ...]:
    return msgspec.structs.astuple(record)


def _record(row: Any) -> RunRecord:
    return msgspec.convert(dict(zip(_FIELDS, row, strict=True)), RunRecord)
