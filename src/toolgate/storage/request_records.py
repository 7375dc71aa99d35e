"""Store one record a request: when, who, which model, how it ended and what it used. No content of requests or answers."""

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.keyset_page import ROWS, KeysetQuery, Place, SqlCondition, TimeRange
from toolgate.storage.responses import Write


class StoredRequest(Struct, frozen=True):
    """One request; `created` is when it arrived, in seconds since 1970, `tools` and `warnings` are JSON.

    A text that a request does not have is empty, because Python's sqlite3 looks for an adapter of every None, which takes
    longer than to store a text. Rows of earlier versions have None there.
    """

    id: str
    owner: str
    created: float
    method: str
    path: str
    dialect: str
    upstream: str
    upstream_dialect: str
    model: str
    stream: int
    status: int
    finish_reason: str | None
    code: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    estimated: int
    cost: float
    first_token_ms: float | None
    total_ms: float
    tools: str | None = ""
    warnings: str | None = ""
    run: str | None = ""


# The texts that are empty where a request has none.
ABSENT_TEXTS = ("dialect", "upstream", "upstream_dialect", "model", "finish_reason", "code", "error", "run")


class StatusRange(Struct, frozen=True):
    """The statuses from one to another, both included."""

    first: int
    last: int


# The statuses of all requests that failed.
FAILED = (400, 999)


class RequestFilter(Struct, frozen=True):
    """Which requests are read; None means any. `text` is a part of the model, the error or the id, in any case."""

    owner: str | None = None
    model: str | None = None
    dialect: str | None = None
    statuses: StatusRange | None = None
    text: str | None = None
    times: TimeRange = TimeRange()


# How many rows one page looks at where a text is searched for: each costs as much as four others.
TEXT_ROWS = 2_500


class RequestPage(Struct, frozen=True):
    """The requests of a page, and the id of the last request that was looked at, if there may be more."""

    requests: list[StoredRequest]
    last: str | None = None


_FIELDS = StoredRequest.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_VALUES = ", ".join("?" * len(_FIELDS))
# Rows of one statement: while SQLite works on them the event loop runs, which waits for the making of the next.
_ROWS_AT_ONCE = 20


def _insert(rows: int) -> str:
    values = ", ".join([f"({_VALUES})"] * rows)
    return f"INSERT INTO request_records ({_COLUMNS}) VALUES {values} ON CONFLICT (id) DO NOTHING"  # noqa: S608 - constants


_INSERT, _INSERT_MANY = _insert(1), _insert(_ROWS_AT_ONCE)
_LATER = (
    *("upstream", "upstream_dialect", "model", "status", "finish_reason", "code", "error", "input_tokens", "cost"),
    *("output_tokens", "cached_tokens", "reasoning_tokens", "estimated", "tools", "warnings", "run"),
)
# The row keeps the time of the first request: what passed until the background began is added to the latencies.
_WAITED = "(excluded.created - request_records.created) * 1000"
_REPLACE = f"""
INSERT INTO request_records ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (id) DO UPDATE SET
    {", ".join([f"{name} = excluded.{name}" for name in _LATER])},
    first_token_ms = {_WAITED} + excluded.first_token_ms, total_ms = {_WAITED} + excluded.total_ms
"""  # noqa: S608 - constants
_FIND = f"SELECT {_COLUMNS} FROM request_records WHERE id = :id AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)"  # noqa: S608 - constants


class RequestStore:
    """Stores the records of requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(
        self, accepted: Callable[[], Iterable[StoredRequest]], background: Callable[[], Iterable[StoredRequest]]
    ) -> Write:
        """Return the write that stores these, which are made in the thread of the database, a few at a time.

        The record of a `background` response takes the place of that of the request for it, and keeps its time.
        """

        def write(db: SqlConnection) -> None:
            rows = map(astuple, accepted())
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                if len(some) == _ROWS_AT_ONCE:
                    db.execute(_INSERT_MANY, list(chain.from_iterable(some)))
                else:
                    db.executemany(_INSERT, some)
            if later := [astuple(one) for one in background()]:
                db.executemany(_REPLACE, later)

        return write

    async def find(self, id: str, owner: str | None) -> StoredRequest | None:
        """Return the request of this id, if this owner has it; None is any owner."""
        values = {"id": id, "owner": owner}
        rows = await self._database.read(lambda db: db.execute(_FIND, values).fetchall())
        return _request(rows[0]) if rows else None

    async def page(
        self, wanted: RequestFilter, after: str | None, limit: int, *, newest_first: bool = True, rows: int = ROWS
    ) -> RequestPage | None:
        """Return at most so many requests after the one named `after`; None if there is no such one.

        At most `rows` are looked at, so that the page may be shorter although there are more.
        """
        query = KeysetQuery("request_records", _COLUMNS, tuple(_conditions(wanted)), wanted.times)
        if wanted.text is not None:
            rows = min(rows, TEXT_ROWS)

        def read(db: SqlConnection) -> RequestPage | None:
            start: Place | None = None
            if after is not None:
                found = db.execute(_FIND, {"id": after, "owner": wanted.owner}).fetchone()
                if found is None:
                    return None
                start = (found[2], found[0])
            page = query.page(db, start, limit, newest_first=newest_first, rows=rows)
            return RequestPage([_request(row[2:]) for row in page.rows], page.last[1] if page.last else None)

        return await self._database.read(read)


def _conditions(wanted: RequestFilter) -> Iterable[SqlCondition]:
    # `|| ''` and `+ 0` change no value, and keep the database from using an index (`SqlCondition.unindexed`).
    if wanted.owner is not None:
        yield SqlCondition("owner = ?", (wanted.owner,), unindexed="owner || '' = ?")
    if wanted.model is not None:
        yield SqlCondition("model = ?", (wanted.model,), unindexed="model || '' = ?")
    if wanted.dialect is not None:
        yield SqlCondition("dialect = ?", (wanted.dialect,))
    if (statuses := wanted.statuses) is not None:
        if statuses.first >= 400:  # written exactly as in the index of failed requests
            yield SqlCondition("status >= 400", unindexed="status + 0 >= 400")
        if statuses.first == statuses.last:
            yield SqlCondition("status = ?", (statuses.first,))
        elif (statuses.first, statuses.last) != FAILED:
            yield SqlCondition("status >= ? AND status <= ?", (statuses.first, statuses.last))
    if wanted.text is not None:
        # LIKE compares every letter of the text at every place, which takes seconds where both repeat one letter.
        columns = ("lower(model)", "lower(coalesce(error, ''))", "lower(id)")
        fits = [f"replace({column}, ?, '') <> {column}" for column in columns]
        yield SqlCondition(f"({' OR '.join(fits)})", (wanted.text.lower(),) * len(fits))


def _request(row: Any) -> StoredRequest:
    return msgspec.convert(dict(zip(_FIELDS, row, strict=True)), StoredRequest)
