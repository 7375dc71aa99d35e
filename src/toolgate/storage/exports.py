"""All records of a kind, one after the other, for whoever takes them elsewhere.

They are read a few at a time by their keys, so that a server may go on writing; what is added or deleted meanwhile may be
among them or not. No table with secrets is read, nor any digest of a key.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.storage.chats import StoredMessage
from toolgate.storage.database import Connection, Database
from toolgate.storage.invocations import StoredInvocation
from toolgate.storage.usage import SUMS

_AT_ONCE = 100
Record: TypeAlias = dict[str, Any]


class _Source(Struct, frozen=True):
    """Where records of a kind stand: their table, the columns that are told by these names, and their key."""

    name: str
    table: str
    told: Mapping[str, str]
    key: tuple[str, ...] = ("id",)
    owner: str = "owner"
    time: str = "created"
    whole: Callable[[Connection, Record], Record] = lambda db, record: record


def _conversation(db: Connection, record: Record) -> Record:
    select = "SELECT item FROM conversation_items WHERE conversation = ? ORDER BY place"
    items = [msgspec.json.decode(row[0]) for row in db.execute(select, (record["id"],))]
    return {**record, "metadata": msgspec.json.decode(record["metadata"]), "items": items}


def _response(db: Connection, record: Record) -> Record:
    return {**record, **{name: msgspec.json.decode(record[name]) for name in ("input", "response")}}


_MESSAGE = {name: name for name in StoredMessage.__struct_fields__ if name not in ("request", "created", "place")}
_MESSAGE |= {"request_id": "request", "created_at": "created"}
_MESSAGES = f"SELECT {', '.join(_MESSAGE.values())} FROM chat_messages WHERE chat = ? ORDER BY place"  # noqa: S608 - constants
_JSON = frozenset({"content_json", "tool_calls", "function_call", "usage"})


def _chat(db: Connection, record: Record) -> Record:
    rows = db.execute(_MESSAGES, (record["id"],)).fetchall()
    messages = [_message(dict(zip(_MESSAGE, row, strict=True))) for row in rows]
    select = "SELECT id, place, metadata FROM completions WHERE chat = ? ORDER BY place"
    stored = [
        {"id": id, "message": place, "metadata": msgspec.json.decode(noted)}
        for id, place, noted in db.execute(select, (record["id"],))
    ]
    return {**record, "messages": messages, "completions": stored}


def _message(told: Record) -> Record:
    """A message without what was not said, but for its content."""
    return {
        name: msgspec.json.decode(value) if name in _JSON else value
        for name, value in told.items()
        if value is not None or name == "content"
    }


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_SOURCES: Mapping[str, _Source] = {
    "conversations": _Source(
        "conversation",
        "conversations",
        {**_same("id", "owner"), "created_at": "created", "metadata": "metadata"},
        whole=_conversation,
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
        whole=_response,
    ),
    "chats": _Source(
        "chat",
        "chats",
        {**_same("id", "owner", "model", "dialect"), "created_at": "created", "updated_at": "updated"},
        time="updated",
        whole=_chat,
    ),
    "invocations": _Source(
        "invocation", "tool_invocations", _same(*StoredInvocation.__struct_fields__), time="started"
    ),
    "usage": _Source(
        "usage", "usage_sums", _same("day", "key", "model", *SUMS), ("day", "key", "model"), owner="key", time="day"
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
"""What can be exported."""


async def exported(
    database: Database, kind: str, *, owner: str | None = None, since: float | None = None
) -> AsyncIterator[Record]:
    """The records of this kind, of one owner or of all, from this time on or all, each with its kind in `kind`."""
    source = _SOURCES[kind]
    last: Sequence[Any] | None = None
    while True:
        text, values = _question(source, last, owner, since)
        found = await database.do(lambda db: _read(db, source, text, values))  # noqa: B023 - it runs within this round
        for record in found:
            yield {"kind": source.name, **record}
        if len(found) < _AT_ONCE:
            return
        last = [found[-1][name] for name in source.key]


def _question(
    source: _Source, last: Sequence[Any] | None, owner: str | None, since: float | None
) -> tuple[str, list[Any]]:
    conditions, values = ["1 = 1"], list(last or ())
    if last is not None:
        conditions.append(f"({', '.join(source.key)}) > ({', '.join('?' * len(source.key))})")
    if owner is not None:
        conditions.append(f"{source.owner} = ?")
        values.append(owner)
    if since is not None:
        conditions.append(f"{source.time} >= ?")
        values.append(f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d}" if source.time == "day" else since)
    where, columns, order = " AND ".join(conditions), ", ".join(source.told.values()), ", ".join(source.key)
    return f"SELECT {columns} FROM {source.table} WHERE {where} ORDER BY {order} LIMIT {_AT_ONCE}", values  # noqa: S608 - constants


def _read(db: Connection, source: _Source, text: str, values: Sequence[Any]) -> list[Record]:
    rows = db.execute(text, values).fetchall()
    return [source.whole(db, dict(zip(source.told, row, strict=True))) for row in rows]
