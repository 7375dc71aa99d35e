"""Store one record a request: when, who, which model, how it ended and what it used. No content of requests or answers.

Requests that come one by one are rows of `request_records`, those of a busy time are in batches
(`toolgate.storage.request_batches`). Lists have both, in one order.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.keyset_page import ROWS, KeysetQuery, SqlCondition
from toolgate.storage.request_batches import RequestColumns, find_in_batches, pack, page_of_batches
from toolgate.storage.responses import Write
from toolgate.storage.stored_requests import FAILED, RequestFilter, RequestPage, StoredRequest

# How many rows one page looks at where a text is searched for: each costs as much as four others.
TEXT_ROWS = 2_500

# Bytes of a row without the texts that clients and upstreams decide, about.
_ROW_BYTES = 600

_FIELDS = StoredRequest.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_VALUES = ", ".join("?" * len(_FIELDS))
_INSERT = f"INSERT INTO request_records ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (id) DO NOTHING"  # noqa: S608 - constants
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


class RequestWrite(Struct, frozen=True):
    """A write of several records, and about how many bytes they take until then.

    `singly` returns a write for each of them, if they are rows.
    """

    write: Write
    size: int
    requests: int
    singly: Callable[[], Iterable[Write]] | None = None


class RequestStore:
    """Stores the records of requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(self, requests: RequestColumns) -> list[RequestWrite]:
        """Return the writes that store these, of which there must be at least one.

        Batches are packed here and now: the thread of the database gets bytes, and not thousands of small objects that
        its processor core would have to fetch from the other.
        """
        batches, rows = pack(requests)
        writes = [RequestWrite(one.write, _ROW_BYTES + len(one.packed), one.requests) for one in batches]
        return [*writes, _write_rows(_INSERT, rows)] if rows else writes

    def replacing(self, requests: Sequence[StoredRequest]) -> list[RequestWrite]:
        """Return the write that stores these in the place of the records of their ids, and keeps the times of those.

        The record of a background response replaces that of the request for it.
        """
        return [_write_rows(_REPLACE, requests)] if requests else []

    async def find(self, id: str, owner: str | None) -> StoredRequest | None:
        """Return the request of this id, if this owner has it; None is any owner."""
        return await self._database.read(lambda db: _find(db, id, owner))

    async def page(
        self, wanted: RequestFilter, after: str | None, limit: int, *, newest_first: bool = True, rows: int = ROWS
    ) -> RequestPage | None:
        """Return at most so many requests after the one named `after`; None if there is no such one.

        About `rows` are looked at, so that the page may be shorter although there are more.
        """
        query = KeysetQuery("request_records", _COLUMNS, tuple(_conditions(wanted)), wanted.times)
        if wanted.text is not None:
            rows = min(rows, TEXT_ROWS)

        def read(db: SqlConnection) -> RequestPage | None:
            first = None if after is None else _find(db, after, wanted.owner)
            if after is not None and first is None:
                return None
            start = None if first is None else first.place
            single = query.page(db, start, limit, newest_first=newest_first, rows=rows)
            pages = (
                RequestPage([_request(row[2:]) for row in single.rows], single.last),
                page_of_batches(db, wanted, start, limit, newest_first=newest_first, rows=rows),
            )
            return _merge(pages, limit, newest_first=newest_first)

        return await self._database.read(read)


def _write_rows(statement: str, requests: Sequence[StoredRequest]) -> RequestWrite:
    def writing(rows: Sequence[StoredRequest]) -> Write:
        return lambda db: db.executemany(statement, map(astuple, rows))

    texts = sum([len(one.path) + len(f"{one.error}{one.tools}{one.warnings}") for one in requests])
    size = _ROW_BYTES * len(requests) + texts
    return RequestWrite(writing(requests), size, len(requests), lambda: [writing([one]) for one in requests])


def _find(db: SqlConnection, id: str, owner: str | None) -> StoredRequest | None:
    row = db.execute(_FIND, {"id": id, "owner": owner}).fetchone()
    return find_in_batches(db, id, owner) if row is None else _request(row)


def _merge(pages: Sequence[RequestPage], limit: int, *, newest_first: bool) -> RequestPage:
    """Return the beginning of these pages as one: up to where all of them have looked."""
    requests = [one for page in pages for one in page.requests]
    requests.sort(key=lambda one: one.place, reverse=newest_first)
    last = (max if newest_first else min)([page.last for page in pages if page.last is not None], default=None)
    if last is not None:
        requests = [one for one in requests if (one.place >= last if newest_first else one.place <= last)]
    if len(requests) > limit:
        return RequestPage(requests[:limit], requests[limit - 1].place)
    return RequestPage(requests, last)


def _conditions(wanted: RequestFilter) -> Iterable[SqlCondition]:
    # `|| ''` and `+ 0` change no value, and keep the database from using an index (`SqlCondition.unindexed`).
    if wanted.owner is not None:
        yield SqlCondition("owner = ?", (wanted.owner,), unindexed="owner || '' = ?", owner=True)
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
    return msgspec.convert(tuple(row), StoredRequest)
