"""Answers of the Responses API that a client may name again, in SQLite.

A write is on the disk before it is reported done: WAL with `synchronous=FULL`. All access goes through one thread,
so that the event loop never waits for the disk and SQLite never sees two writers.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import Overloaded

_T = TypeVar("_T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (id, owner)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    created INTEGER NOT NULL,
    input BLOB NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
"""
_LONGEST_CHAIN = 10_000


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

    def __init__(self, path: Path | None) -> None:
        """Open lazily, at the first use; without a path everything stays in memory."""
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="toolgate-storage")
        self._connection: sqlite3.Connection | None = None

    async def save(self, response: StoredResponse) -> None:
        """Keep a response; once this returns it survives a crash."""
        row = (
            response.id,
            response.owner,
            response.previous,
            response.created,
            msgspec.json.encode(response.input),
            msgspec.json.encode(response.body),
        )
        items = [(id, response.owner, response.id) for id in _output(response)]

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN")
                db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
                db.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", items)

        await self._do(write)

    async def load(self, owner: str, id: str) -> StoredResponse | None:
        """The response of this id, if this owner has one."""
        rows = await self._do(lambda db: db.execute(_SELECT, (id, owner)).fetchall())
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
        rows = await self._do(lambda db: db.execute(_SELECT_BY_ITEM, (id, owner)).fetchall())
        return _output(_response(rows[0])).get(id) if rows else None

    async def delete(self, owner: str, id: str) -> bool:
        """Forget a response and its items; false if this owner has none of this id."""
        response = await self.load(owner, id)
        if response is None:
            return False
        items = [(item, owner) for item in _output(response)]

        def forget(db: sqlite3.Connection) -> bool:
            with db:
                db.execute("BEGIN")
                db.executemany("DELETE FROM items WHERE id = ? AND owner = ?", items)
                return db.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (id, owner)).rowcount == 1

        return await self._do(forget)

    async def aclose(self) -> None:
        """Finish what is being written and close."""
        if self._connection is not None:
            await self._do(lambda db: db.close())
            self._connection = None
        self._thread.shutdown()

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)
        except sqlite3.OperationalError as error:
            raise Overloaded(
                f"The storage is not available: {error}.", code="storage_unavailable", retry_after=5
            ) from error

    def _work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._connection is None:
            self._connection = _open(self._path)
        return work(self._connection)


_SELECT = "SELECT id, owner, previous, created, input, body FROM responses WHERE id = ? AND owner = ?"
_SELECT_BY_ITEM = """
SELECT kept.id, kept.owner, previous, created, input, body
FROM items JOIN responses AS kept ON kept.id = items.response AND kept.owner = items.owner
WHERE items.id = ? AND items.owner = ?
"""


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_SCHEMA)
    return connection


def _output(response: StoredResponse) -> dict[str, dict[str, Any]]:
    """The items that a response gave, by their ids; an upstream of the same dialect may have told anything."""
    items = response.body.get("output")
    return {item["id"]: item for item in items if _is_named(item)} if type(items) is list else {}


def _is_named(item: Any) -> bool:
    return type(item) is dict and type(item.get("id")) is str


def _response(row: tuple[Any, ...]) -> StoredResponse:
    id, owner, previous, created, input, body = row
    return StoredResponse(id, owner, previous, created, msgspec.json.decode(input), msgspec.json.decode(body))
