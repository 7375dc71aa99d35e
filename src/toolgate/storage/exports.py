"""Read all records of a kind, one after the other, for an export.

They are read a few at a time by their keys, so that a server may go on writing; what is added or deleted meanwhile may be
among them or not. JSON is passed on as it is stored. No table with secrets is read, nor any digest of a key.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.invocations import StoredInvocation
from toolgate.storage.recorded_chats import StoredMessage
from toolgate.storage.request_batches import PERIOD, unpack
from toolgate.storage.run_records import RunRecord
from toolgate.storage.stored_requests import StoredRequest
from toolgate.storage.usage import SUMS

_AT_ONCE = 100
# No further record is read for now after so many bytes: clients decide how large their records are.
_BYTES_AT_ONCE = 4 * 1024 * 1024

_Record: TypeAlias = dict[str, Any]


class _Source(Struct, frozen=True):
    """Where records of a kind are: their table, the columns by the names of the export, and their key.

    With `by_day`, their `time` is a day as text. `unpack` is given if a row has several records: it returns those from a
    time on.
    """

    name: str
    table: str
    fields: Mapping[str, str]
    key: tuple[str, ...] = ("id",)
    owner: str = "owner"
    time: str = "created"
    complete: Callable[[SqlConnection, _Record], _Record] = lambda db, record: record
    by_day: bool = False
    unpack: Callable[[_Record, float], list[_Record]] | None = None


def _conversation(db: SqlConnection, record: _Record) -> _Record:
    select = "SELECT item FROM conversation_items WHERE conversation = ? ORDER BY place"
    items = [msgspec.Raw(row[0]) for row in db.execute(select, (record["id"],))]
    return {**record, "metadata": msgspec.Raw(record["metadata"]), "items": items}


def _response(db: SqlConnection, record: _Record) -> _Record:
    return {**record, **{name: msgspec.Raw(record[name]) for name in ("input", "response")}}


_MESSAGE = {name: name for name in StoredMessage.__struct_fields__ if name not in ("request", "created", "place")}
_MESSAGE |= {"request_id": "request", "created_at": "created"}
_MESSAGES = f"SELECT {', '.join(_MESSAGE.values())} FROM chat_messages WHERE chat = ? ORDER BY place"  # noqa: S608 - constants
_JSON = frozenset({"content_json", "tool_calls", "function_call", "usage"})


def _chat(db: SqlConnection, record: _Record) -> _Record:
    messages = [
        {
            name: msgspec.Raw(value) if name in _JSON else value
            for name, value in zip(_MESSAGE, row, strict=True)
            if value is not None or name == "content"  # documented as always there: a text or null
        }
        for row in db.execute(_MESSAGES, (record["id"],)).fetchall()
    ]
    select = "SELECT id, place, metadata FROM completions WHERE chat = ? ORDER BY place"
    stored = [
        {"id": id, "message": place, "metadata": msgspec.Raw(noted)}
        for id, place, noted in db.execute(select, (record["id"],))
    ]
    return {**record, "messages": messages, "completions": stored}


def _request_record(db: SqlConnection, record: _Record) -> _Record:
    flags = {name: bool(record[name]) for name in ("stream", "estimated")}
    lists = {name: msgspec.json.decode(record[name] or "[]") for name in ("tools", "warnings")}
    texts = {name: record[name] or None for name in ("finish_reason", "code", "error", "run")}
    return {**record, **flags, **lists, **texts}


def _batched_requests(record: _Record, since: float) -> list[_Record]:
    requests = [one for one in unpack(record["packed"]) if one.created >= since]
    return [dict(zip(_REQUEST, astuple(one), strict=True)) for one in requests]


_REQUEST = {("created_at" if name == "created" else name): name for name in StoredRequest.__struct_fields__}

# The names of a run's fields where they differ from its columns: every line of an export has a `kind` of its own.
_RUN_NAMES = {"kind": "run_kind", "created": "created_at", "started": "started_at", "ended": "ended_at"}


def _run_record(db: SqlConnection, record: _Record) -> _Record:
    select = "SELECT entry FROM run_entries WHERE run = ? ORDER BY place"
    entries = [msgspec.json.decode(row[0]) for row in db.execute(select, (record["id"],))]
    return {**record, "tools": msgspec.json.decode(record["tools"] or "[]"), "timeline": entries}


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_SOURCES: Mapping[str, _Source] = {
    "conversations": _Source(
        "conversation",
        "conversations",
        {**_same("id", "owner"), "created_at": "created", "metadata": "metadata"},
        complete=_conversation,
    ),
    "responses": _Source(
        "response",
        "responses",
        {
            **_same("id", "owner"),
            "created_at": "created",
            "previous_response_id": "previous",
            "input": "input",
            "response": "body",
        },
        complete=_response,
    ),
    "chats": _Source(
        "chat",
        "chats",
        {**_same("id", "owner", "model", "dialect"), "created_at": "created", "updated_at": "updated"},
        time="updated",
        complete=_chat,
    ),
    "invocations": _Source(
        "invocation", "tool_invocations", _same(*StoredInvocation.__struct_fields__), time="started"
    ),
    "requests": _Source(
        "request",
        "request_records",
        _REQUEST,
        complete=_request_record,
    ),
    "runs": _Source(
        "run",
        "run_records",
        {_RUN_NAMES.get(name, name): name for name in RunRecord.__struct_fields__},
        complete=_run_record,
    ),
    "usage": _Source(
        "usage",
        "usage_sums",
        _same("day", "key", "model", *SUMS),
        ("day", "key", "model"),
        owner="key",
        time="day",
        by_day=True,
    ),
    "spending": _Source(
        "spending",
        "spending",
        _same("key", "period", "amount"),
        ("key", "period"),
        owner="key",
        time="CASE length(period) WHEN 7 THEN period || '-31' ELSE period END",  # a month lasts to its last day
        by_day=True,
    ),
    "approvals": _Source(
        "approval",
        "approvals",
        {
            **_same("id", "caller", "session", "run", "call", "tool", "source", "arguments", "why", "state"),
            **_same("answered_by", "answered", "level", "reason", "edited", "expires"),
            "created_at": "created",
        },
        owner="caller",
    ),
}
KINDS = tuple(_SOURCES)
# Where further records of a kind are.
_BATCHES: Mapping[str, _Source] = {
    "requests": _Source(
        "request",
        "request_batches",
        _same("packed"),
        time=f"created + {PERIOD}",  # the latest that one of its requests may have come
        complete=_request_record,
        unpack=_batched_requests,
    )
}


async def exported(
    database: Database, kind: str, *, owner: str | None = None, since: float | None = None
) -> AsyncIterator[bytes]:
    """Yield the records of this kind as JSON objects, of one owner or of all, from this time on or all."""
    for source in (_SOURCES[kind], _BATCHES.get(kind)):
        last: Sequence[Any] | None = None
        while source is not None:
            found, last = await database.read(lambda db: _read_batch(db, source, last, owner, since))  # noqa: B023 - it runs within this round
            for line in found:
                yield line
            if last is None:
                break


def _read_batch(
    db: SqlConnection, source: _Source, last: Sequence[Any] | None, owner: str | None, since: float | None
) -> tuple[list[bytes], Sequence[Any] | None]:
    """Return the records after the key `last`, and the key of the last one; None if there are no more."""
    conditions, values = ["1 = 1"], list(last or ())
    if last is not None:
        conditions.append(f"({', '.join(source.key)}) > ({', '.join('?' * len(source.key))})")
    if owner is not None:
        conditions.append(f"{source.owner} = ?")
        values.append(owner)
    if since is not None:
        conditions.append(f"{source.time} >= ?")
        values.append(f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d}" if source.by_day else since)
    where, order = " AND ".join(conditions), ", ".join(source.key)
    # First the keys alone, which are small, then record by record until there are too many bytes.
    text = f"SELECT {order} FROM {source.table} WHERE {where} ORDER BY {order} LIMIT {_AT_ONCE}"  # noqa: S608 - constants
    keys = db.execute(text, values).fetchall()
    one = " AND ".join([f"{name} = ?" for name in source.key])
    select = f"SELECT {', '.join(source.fields.values())} FROM {source.table} WHERE {one}"  # noqa: S608 - constants
    lines: list[bytes] = []
    size = 0
    for key in keys:
        row = db.execute(select, key).fetchone()
        if row is not None:  # a server may have deleted it since its key was read
            record = dict(zip(source.fields, row, strict=True))
            records = [record] if source.unpack is None else source.unpack(record, since or 0.0)
            for each in records:
                lines.append(msgspec.json.encode({"kind": source.name, **source.complete(db, each)}))
                size += len(lines[-1])
            if size > _BYTES_AT_ONCE:
                return lines, key
    return lines, keys[-1] if len(keys) == _AT_ONCE else None
