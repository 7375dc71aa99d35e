"""Store the records of requests that came close together as one row, and read them from there.

A busy server records thousands of requests a second, and a row for each, with its indexes, takes several times as long to
store as its part of a batch. The requests of a batch have one owner, model and dialect, and came within the same five
seconds: so the batches of a few such periods, sorted, are the next part of a list, and the id of a request, which begins
with its time, tells in which of them it is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from toolgate.conversation.request_ids import second_of
from toolgate.storage.database import SqlConnection
from toolgate.storage.keyset_page import Place
from toolgate.storage.stored_requests import RequestFilter, RequestPage, StoredRequest

# Seconds in which all requests of a batch came.
PERIOD = 5

# Fewer records than that are stored as rows, which are found by their indexes.
_FEWEST = 10

# A record with longer lists of names is stored as a row, so that no batch is large.
_MOST_NAMES = 1_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[StoredRequest]).decode

_INSERT = """
INSERT INTO request_batches (id, created, owner, model, dialect, requests, failed, packed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""


def add_in_batches(db: SqlConnection, requests: Iterable[StoredRequest]) -> list[StoredRequest]:
    """Store these requests in batches; return those that are to be stored as rows.

    The record of a run may be replaced later, when it goes on in the background, so it is a row.
    """
    batches: defaultdict[tuple[int, str, str, str], list[StoredRequest]] = defaultdict(list)
    alone: list[StoredRequest] = []
    for one in requests:
        if one.run or ((one.tools or one.warnings) and len(f"{one.tools}{one.warnings}") > _MOST_NAMES):
            alone.append(one)
        else:
            batches[int(one.created) // PERIOD, one.owner, one.model, one.dialect].append(one)
    for (period, *key), batch in batches.items():
        if len(batch) < _FEWEST:
            alone += batch
        else:
            failed = sum([one.status >= 400 for one in batch])
            db.execute(_INSERT, (batch[0].id, period * PERIOD, *key, len(batch), failed, _encode(batch)))
    return alone


def find_in_batches(db: SqlConnection, id: str, owner: str | None) -> StoredRequest | None:
    """Return the request of this id, if this owner has it; None is any owner."""
    second = second_of(id)
    if second is None:
        return None
    conditions, values = _conditions(RequestFilter(owner))
    select = f"SELECT packed FROM request_batches WHERE {' AND '.join([*conditions, 'created = ?'])}"  # noqa: S608 - constants
    for (packed,) in db.execute(select, (*values, _period(second))).fetchall():
        for one in _decode(packed):
            if one.id == id:
                return one
    return None


def page_of_batches(
    db: SqlConnection, wanted: RequestFilter, start: Place | None, limit: int, *, newest_first: bool, rows: int
) -> RequestPage:
    """Return at most so many requests after the place `start`; stop after a period in which `rows` were looked at."""
    conditions, values = _conditions(wanted)
    before, direction = ("<", "DESC") if newest_first else (">", "ASC")
    bounds: list[tuple[str, int]] = [(f"{before}=", _period(start[0]))] if start else []
    fits = _fits(wanted)
    found: list[StoredRequest] = []
    looked, at_once = 0, 4
    while True:
        where = " AND ".join([*conditions, *[f"created {sign} ?" for sign, _ in bounds]])
        bound = [*values, *[value for _, value in bounds]]
        # Whole periods, up to that of the batch after the next few; each time of twice as many.
        after = f"SELECT created FROM request_batches WHERE {where} ORDER BY created {direction} LIMIT 1 OFFSET ?"  # noqa: S608 - constants
        edge = db.execute(after, (*bound, at_once)).fetchone()
        select = f"SELECT created, packed FROM request_batches WHERE {where}"  # noqa: S608 - constants
        if edge is not None:
            select += f" AND NOT created {before} ?"
            bound.append(edge[0])
        batches = db.execute(f"{select} ORDER BY created {direction}", bound).fetchall()
        for _, period in groupby(batches, key=lambda batch: batch[0]):
            some = [one for _, packed in period for one in _decode(packed)]
            if start is not None:
                some = [one for one in some if (one.place < start if newest_first else one.place > start)]
            found += sorted([one for one in some if fits(one)], key=lambda one: one.place, reverse=newest_first)
            looked += len(some)
            if len(found) > limit:
                return RequestPage(found[:limit], found[limit - 1].place)
            if looked >= rows:
                return RequestPage(found, (min if newest_first else max)([one.place for one in some]))
        if edge is None:
            return RequestPage(found)
        bounds, at_once = [(before, edge[0])], 2 * at_once


def unpack(packed: bytes) -> Sequence[StoredRequest]:
    """Return the requests of a batch."""
    return _decode(packed)


def _period(seconds: float) -> int:
    return int(seconds) // PERIOD * PERIOD


def _conditions(wanted: RequestFilter) -> tuple[list[str], list[Any]]:
    """Return the conditions that all requests of a batch fulfil, or none."""
    conditions = ["1 = 1"]
    values: list[Any] = []
    for name, value in (("owner", wanted.owner), ("model", wanted.model), ("dialect", wanted.dialect)):
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    if wanted.statuses is not None and wanted.statuses.first >= 400:
        conditions.append("failed > 0")
    if wanted.times.since is not None:
        conditions.append("created >= ?")
        values.append(_period(wanted.times.since))
    if wanted.times.until is not None:
        conditions.append("created <= ?")
        values.append(_period(wanted.times.until))
    return conditions, values


def _fits(wanted: RequestFilter) -> Callable[[StoredRequest], bool]:
    """Return whether a request of a batch that was read is wanted."""
    statuses, text = wanted.statuses, wanted.text and wanted.text.lower()
    since, until = wanted.times.since, wanted.times.until

    def fits(one: StoredRequest) -> bool:
        return (
            (statuses is None or statuses.first <= one.status <= statuses.last)
            and (since is None or one.created >= since)
            and (until is None or one.created <= until)
            and (text is None or any(text in part.lower() for part in (one.model, one.error or "", one.id)))
        )

    return fits
