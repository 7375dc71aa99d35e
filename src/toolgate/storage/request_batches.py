"""Store the records of requests that came close together as one row, and read them from there.

A busy server records thousands of requests a second, and a row for each, with its indexes, takes several times as long to
store as its part of a batch. The requests of a batch have one owner, model and dialect, and came within the same five
seconds: so the batches of a few such periods, sorted, are the next part of a list, and the id of a request, which begins
with its time, tells in which of them it is.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

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
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
_FIELDS = StoredRequest.__struct_fields__

# What is stored of requests, field by field; a column may have one value for all of them. Most of a batch is the same for
# all, so that this takes a third of the space of rows, and less time.
RequestColumns: TypeAlias = Mapping[str, Sequence[Any]]

_INSERT = """
INSERT INTO request_batches (id, created, owner, model, dialect, requests, failed, packed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""


class PackedRequests(Struct, frozen=True):
    """The row of a batch: the id of its first request, the start of its period, how many requests it has, and they."""

    id: str
    created: int
    owner: str
    model: str
    dialect: str
    requests: int
    failed: int
    packed: bytes

    def write(self, db: SqlConnection) -> None:
        """Store the batch."""
        db.execute(_INSERT, astuple(self))


def pack(columns: RequestColumns) -> tuple[list[PackedRequests], list[StoredRequest]]:
    """Return these requests in batches, and those that are to be stored as rows.

    The record of a run may be replaced later, when it goes on in the background, so it is a row.
    """
    created = columns["created"]
    period = min(created) // PERIOD
    is_batch = len(created) >= _FEWEST and period == max(created) // PERIOD and not _names_or_runs(columns)
    if is_batch and all(_is_constant(columns[name]) for name in ("owner", "model", "dialect")):
        packed = _pack_batch(period, columns)
        return ([packed], []) if packed is not None else ([], rows_of(columns))
    groups: defaultdict[tuple[float, str, str, str], list[StoredRequest]] = defaultdict(list)
    alone: list[StoredRequest] = []
    for one in rows_of(columns):
        if one.run or ((one.tools or one.warnings) and len(f"{one.tools}{one.warnings}") > _MOST_NAMES):
            alone.append(one)
        else:
            groups[one.created // PERIOD, one.owner, one.model, one.dialect].append(one)
    batches: list[PackedRequests] = []
    for (period, *_), group in groups.items():
        packed = _pack_batch(period, columns_of(group)) if len(group) >= _FEWEST else None
        if packed is not None:
            batches.append(packed)
        else:
            alone += group
    return batches, alone


def _names_or_runs(columns: RequestColumns) -> bool:
    return any(columns["run"]) or any(columns["tools"]) or any(columns["warnings"])


def _pack_batch(period: float, columns: RequestColumns) -> PackedRequests | None:
    """Pack requests of one period, owner, model and dialect; None if one of them cannot be encoded.

    As rows, only those are lost that cannot be stored.
    """
    ids, *others = [columns[name] for name in _FIELDS]
    try:
        packed = _encode([ids, *[column[:1] if _is_constant(column) else column for column in others]])
    except (UnicodeEncodeError, OverflowError):
        return None
    failed = sum([status >= 400 for status in columns["status"]])
    key = (columns["owner"][0], columns["model"][0], columns["dialect"][0])
    return PackedRequests(ids[0], int(period) * PERIOD, *key, len(ids), failed, packed)


def _is_constant(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)


def columns_of(requests: Sequence[StoredRequest]) -> RequestColumns:
    """Return the columns of requests, of which there must be at least one."""
    return dict(zip(_FIELDS, zip(*map(astuple, requests), strict=True), strict=True))


def rows_of(columns: RequestColumns) -> list[StoredRequest]:
    """Return the requests of these columns."""
    count = len(columns["id"])
    full = [column if len(column) == count else repeat(column[0]) for column in map(columns.__getitem__, _FIELDS)]
    return list(map(StoredRequest, *full))


def unpack(packed: bytes) -> Sequence[StoredRequest]:
    """Return the requests of a batch."""
    columns = _decode(packed)
    # An earlier version stored them row by row, with the time as the third value. The third value of ids is an id.
    if type(columns[0][2]) is not str:
        return [StoredRequest(*row) for row in columns]
    return rows_of(dict(zip(_FIELDS, columns, strict=True)))


def find_in_batches(db: SqlConnection, id: str, owner: str | None) -> StoredRequest | None:
    """Return the request of this id, if this owner has it; None is any owner."""
    second = second_of(id)
    if second is None:
        return None
    conditions, values = _conditions(RequestFilter(owner))
    select = f"SELECT packed FROM request_batches WHERE {' AND '.join([*conditions, 'created = ?'])}"  # noqa: S608 - constants
    for (packed,) in db.execute(select, (*values, _period(second))).fetchall():
        for one in unpack(packed):
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
            some = [one for _, packed in period for one in unpack(packed)]
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
