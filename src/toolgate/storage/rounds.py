"""What runs did that their clients do not see, in SQLite: turns in which the server's tools were called beside the client's
own, and runs that were cut off or wait for a person.

A turn is found by the calls that the client comes back with, a run by the request that began it.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Message
from toolgate.storage.database import Database

KEPT_SECONDS = 7 * 24 * 3600.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    created REAL NOT NULL,
    messages BLOB NOT NULL,
    started BLOB NOT NULL,
    PRIMARY KEY (owner, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rounds_by_time ON rounds (created);
"""
_SELECT = "SELECT key, messages, started FROM rounds WHERE owner = ? AND created > ? AND key IN (%s)"
_KEEP = """
INSERT INTO rounds VALUES (?, ?, ?, ?, '[]') ON CONFLICT (owner, key) DO UPDATE SET messages = ?, created = ?
"""
_messages = msgspec.json.Decoder(tuple[Message, ...])
_started = msgspec.json.Decoder(list[str])


class KeptRounds(Struct, frozen=True):
    """The messages that were said and done, and the calls that had begun."""

    messages: tuple[Message, ...]
    started: frozenset[str] = frozenset()


class RoundStore:
    """Keeps rounds for a week; nobody finds another's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.needs(_SCHEMA)

    async def find(self, owner: str, keys: Iterable[str], within: float = KEPT_SECONDS) -> dict[str, KeptRounds]:
        """What was kept under these keys within so many seconds."""
        asked = list(keys)
        if not asked:
            return {}
        query = _SELECT % ", ".join("?" * len(asked))
        oldest = time.time() - within
        rows = await self._database.do(lambda db: db.execute(query, (owner, oldest, *asked)).fetchall())
        return {key: KeptRounds(_messages.decode(said), frozenset(_started.decode(begun))) for key, said, begun in rows}

    async def keep(
        self, owner: str, keys: Sequence[str], messages: Sequence[Message], forget: Sequence[str] = ()
    ) -> None:
        """Keep these messages under every key, and nothing any more under those to forget."""
        now, written = time.time(), msgspec.json.encode(messages)
        kept = [(owner, key, now, written, written, now) for key in keys]
        dropped = [(owner, key) for key in forget]

        def write(db: sqlite3.Connection) -> None:
            db.executemany(_KEEP, kept)
            db.executemany("DELETE FROM rounds WHERE owner = ? AND key = ?", dropped)
            db.execute("DELETE FROM rounds WHERE created < ?", (now - KEPT_SECONDS,))

        await self._database.change(write)

    async def start(self, owner: str, key: str, call_id: str) -> None:
        """Remember that a call has begun; once this returns it survives a crash."""
        await self._database.change(
            lambda db: db.execute(
                "UPDATE rounds SET started = json_insert(started, '$[#]', ?) WHERE owner = ? AND key = ?",
                (call_id, owner, key),
            )
        )
