"""Answers of the Responses API that a client may name again.

A response is on the disk before it is reported kept.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.storage.database import Connection, Database

_LONGEST_CHAIN = 10_000

Write: TypeAlias = Callable[[Connection], object]
"""A change to other tables that must happen together with one to these, or not at all."""


class StoredResponse(Struct, frozen=True):
    """One answer: the input items that were new in its request, the response object, and what it continued."""

    id: str
    owner: str
    previous: str | None
    created: int
    input: list[Any]
    body: dict[str, Any]


class ResponseStore:
    """Keeps responses; whoever does not own one cannot tell it from one that does not exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, response: StoredResponse, *also: Write) -> None:
        """Keep a response, and make the other changes with it; once this returns all of it survives a crash."""
        items = [(id, response.owner, response.id) for id in _output(response)]

        def write(db: Connection) -> None:
            said = (msgspec.json.encode(response.input), msgspec.json.encode(response.body))  # may be large
            db.execute(_SAVE, (response.id, response.owner, response.previous, response.created, *said))
            db.executemany(_SAVE_ITEM, items)
            for other in also:
                other(db)

        await self._database.change(write)

    async def load(self, owner: str, id: str) -> StoredResponse | None:
        """The response of this id, if this owner has one."""
        rows = await self._database.do(lambda db: db.execute(_SELECT, (id, owner)).fetchall())
        return _response(rows[0]) if rows else None

    async def chain(self, owner: str, id: str) -> list[StoredResponse]:
        """The response and all it continues, oldest first; empty when any of them is gone."""
        chain: list[StoredResponse] = []
        following: str | None = id
        while following is not None and len(chain) < _LONGEST_CHAIN:
            response = await self.load(owner, following)
            if response is None:
                return []
            chain.append(response)
            following = response.previous
        return chain[::-1]

    async def item(self, owner: str, id: str) -> dict[str, Any] | None:
        """The item of this id that a kept response of this owner gave."""
        rows = await self._database.do(lambda db: db.execute(_SELECT_BY_ITEM, (id, owner)).fetchall())
        return _output(_response(rows[0])).get(id) if rows else None

    async def delete(self, owner: str, id: str, *also: Write) -> bool:
        """Forget a response and its items, with the other changes; false if this owner has none of this id."""
        response = await self.load(owner, id)
        if response is None:
            return False
        items = [(item, owner) for item in _output(response)]

        def forget(db: Connection) -> bool:
            db.executemany("DELETE FROM items WHERE id = ? AND owner = ?", items)
            for other in also:
                other(db)
            return db.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (id, owner)).rowcount == 1

        return await self._database.change(forget)


_SAVE = """
INSERT INTO responses (id, owner, previous, created, input, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, previous = excluded.previous, created = excluded.created,
    input = excluded.input, body = excluded.body
"""
_SAVE_ITEM = """
INSERT INTO items (id, owner, response) VALUES (?, ?, ?)
ON CONFLICT (id, owner) DO UPDATE SET response = excluded.response
"""
_SELECT = "SELECT id, owner, previous, created, input, body FROM responses WHERE id = ? AND owner = ?"
_SELECT_BY_ITEM = """
SELECT kept.id, kept.owner, previous, created, input, body
FROM items JOIN responses AS kept ON kept.id = items.response AND kept.owner = items.owner
WHERE items.id = ? AND items.owner = ?
"""


def _output(response: StoredResponse) -> dict[str, dict[str, Any]]:
    """The items that a response gave, by their ids; an upstream of the same dialect may have told anything."""
    items = response.body.get("output")
    return {item["id"]: item for item in items if _is_named(item)} if type(items) is list else {}


def _is_named(item: Any) -> bool:
    return type(item) is dict and type(item.get("id")) is str


def _response(row: tuple[Any, ...]) -> StoredResponse:
    id, owner, previous, created, input, body = row
    return StoredResponse(id, owner, previous, created, msgspec.json.decode(input), msgspec.json.decode(body))
