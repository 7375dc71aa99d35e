"""Store responses of the Responses API that a client may read or continue.

A response survives a crash once it is reported stored. What is large is decoded in the threads of the database, one row
after the other, and measured before it is read.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.call_ids import is_storable
from toolgate.conversation.errors import InvalidRequest
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.sql_engine import batches, placeholders

# A change to other tables that must happen together with one to these, or not at all.
Write: TypeAlias = Callable[[SqlConnection], object]


class StoredResponse(Struct, frozen=True):
    """One response: the new input items of its request, the response object, and the response that it continues."""

    id: str
    owner: str
    previous: str | None
    created: int
    input: list[Any]
    body: dict[str, Any]


class HistoryLimits(Struct, frozen=True):
    """How many earlier items one request may load."""

    bytes: int = 16 * 1024 * 1024
    items: int = 10_000

    def check(self, size: int, items: int, what: str, param: str) -> None:
        """Raise InvalidRequest if there is more; `what` names it, and `param` the field that asks for it."""
        if size > self.bytes:
            raise _too_long(what, f"{self.bytes} bytes (responses.past_bytes)", param)
        if items > self.items:
            raise _too_long(what, f"{self.items} items (responses.past_items)", param)


# Values of SQL, in which a number has 64 bits.
NO_LIMITS = HistoryLimits(2**62, 2**31)


def _too_long(what: str, limit: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} holds more than {limit}; start again with the items that still matter.",
        param=param,
        code="context_length_exceeded",
    )


class ResponseStore:
    """Stores responses; one of another owner looks like one that does not exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, response: StoredResponse, *also: Write) -> None:
        """Store a response together with the other writes; once this returns all of it survives a crash."""
        one = response
        items = [(id, one.owner, one.id) for id in _output(one)]

        def write(db: SqlConnection) -> None:
            # Item by item, because a call of the encoder holds the interpreter until it returns.
            input = b"[%b]" % b",".join([msgspec.json.encode(item) for item in one.input])
            body = msgspec.json.encode(one.body)
            db.execute(_SAVE, (one.id, one.owner, one.previous, one.created, input, body, len(input) + len(body)))
            db.executemany(_SAVE_ITEM, items)
            for other in also:
                other(db)

        await self._database.change(write)

    async def load(self, owner: str, id: str) -> StoredResponse | None:
        """Return the response of this id, if this owner has one."""
        return await self._database.read(lambda db: _load_rows(db, owner, [id]).get(id))

    async def chain(self, owner: str, id: str, limits: HistoryLimits = NO_LIMITS) -> list[StoredResponse]:
        """Return the response and all it continues, oldest first; empty when any of them was deleted.

        InvalidRequest, before anything of it is read, if all of it is larger than the limits.
        """
        values = {"id": id, "owner": owner, "most": limits.bytes, "turns": limits.items}

        def read(db: SqlConnection) -> list[StoredResponse]:
            rows = db.execute(_CHAIN, values).fetchall()
            if not rows:
                return []
            _, previous, size, turns = rows[0]  # the oldest that was reached
            # The query stops at the limit: if the oldest one continues another, there is at least one more.
            what = f"The response {id[:100]!r} with all that it continues"
            limits.check(size, turns + (turns >= limits.items and previous is not None), what, "previous_response_id")
            if previous is not None:  # within the limits the chain ends early only where one was deleted
                return []
            ids = [row[0] for row in rows]
            found = _load_rows(db, owner, ids)
            return [found[one] for one in ids] if len(found) == len(ids) else []

        return await self._database.read(read)

    async def item(self, owner: str, id: str) -> dict[str, Any] | None:
        """Return the output item of this id, if a stored response of this owner has it."""
        found = await self.items(owner, [id])
        return found[id][0] if id in found else None

    async def items(
        self, owner: str, ids: Sequence[str], limits: HistoryLimits = NO_LIMITS
    ) -> "dict[str, tuple[dict[str, Any], int]]":
        """Return the output items of these ids in stored responses of this owner, each with its size.

        InvalidRequest, before any is read, if these responses are larger than the limits.
        """

        def read(db: SqlConnection) -> dict[str, tuple[dict[str, Any], int]]:
            response_of_item: dict[str, str] = {}
            for some in batches(ids):
                select = f"SELECT id, response FROM items WHERE owner = ? AND id IN ({placeholders(some)})"  # noqa: S608 - ?
                response_of_item |= dict(db.execute(select, (owner, *some)).fetchall())
            # Items are not stored by themselves: the whole responses are read, so these are what is measured.
            responses = list(dict.fromkeys(response_of_item.values()))
            size = 0
            for some in batches(responses):
                select = (
                    f"SELECT coalesce(sum(bytes), 0) FROM responses WHERE owner = ? AND id IN ({placeholders(some)})"  # noqa: S608 - ?
                )
                size += int(db.execute(select, (owner, *some)).fetchone()[0])
            limits.check(size, 0, "What the item references name", "input")
            outputs: dict[str, dict[str, Any]] = {}
            for response in _load_rows(db, owner, responses).values():
                outputs |= _output(response)
            return {
                id: (outputs[id], len(msgspec.json.encode(outputs[id]))) for id in response_of_item if id in outputs
            }

        return await self._database.read(read)

    async def delete(self, owner: str, id: str, *also: Write) -> bool:
        """Delete a response and its items, together with the other writes; false if this owner has none of this id."""
        response = await self.load(owner, id)
        if response is None:
            return False
        items = [(item, owner) for item in _output(response)]

        def forget(db: SqlConnection) -> bool:
            db.executemany("DELETE FROM items WHERE id = ? AND owner = ?", items)
            for other in also:
                other(db)
            forget_run_content(db, [id])
            return db.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (id, owner)).rowcount == 1

        return await self._database.change(forget)


_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode

_SAVE = """
INSERT INTO responses (id, owner, previous, created, input, body, bytes) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, previous = excluded.previous, created = excluded.created,
    input = excluded.input, body = excluded.body, bytes = excluded.bytes
"""
_SAVE_ITEM = """
INSERT INTO items (id, owner, response) VALUES (?, ?, ?)
ON CONFLICT (id, owner) DO UPDATE SET response = excluded.response
"""
_SELECT = "SELECT id, owner, previous, created, input, body FROM responses WHERE owner = ? AND id IN (%s)"
# Goes no further than it takes to know that it is too much.
_CHAIN = """
WITH RECURSIVE chain (id, previous, size, turns) AS (
    SELECT id, previous, bytes, 1 FROM responses WHERE id = :id AND owner = :owner
    UNION ALL
    SELECT earlier.id, earlier.previous, chain.size + earlier.bytes, chain.turns + 1
    FROM chain JOIN responses AS earlier ON earlier.id = chain.previous
    WHERE earlier.owner = :owner AND chain.size <= :most AND chain.turns < :turns
)
SELECT id, previous, size, turns FROM chain ORDER BY turns DESC
"""


def forget_run_content(db: SqlConnection, responses: Sequence[str]) -> None:
    """Delete what runs hold of these responses: their requests, and the links to them."""
    rows = [(id,) for id in responses]
    db.executemany("DELETE FROM run_requests WHERE response = ?", rows)
    db.executemany("UPDATE run_records SET response = NULL WHERE response = ?", rows)


def _load_rows(db: SqlConnection, owner: str, ids: Sequence[str]) -> dict[str, StoredResponse]:
    """Return those of the responses that this owner has, by their ids."""
    found: dict[str, StoredResponse] = {}
    for some in batches(ids, 100):
        for row in db.execute(_SELECT % placeholders(some), (owner, *some)).fetchall():
            id, owner, previous, created, input, body = row
            items = [msgspec.json.decode(item) for item in _decode_items(input)]  # as they are encoded
            found[id] = StoredResponse(id, owner, previous, created, items, msgspec.json.decode(body))
    return found


def _output(response: StoredResponse) -> dict[str, dict[str, Any]]:
    """Return the output items of a response by their ids; an upstream of the same dialect may have sent anything."""
    items = response.body.get("output")
    if type(items) is not list:
        return {}
    return {item["id"]: item for item in items if type(item) is dict and is_storable(item.get("id"))}
