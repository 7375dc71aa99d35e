"""Definitions of tools that a person has accepted, in SQLite, so that a changed one is noticed across restarts."""

import sqlite3
from collections.abc import Mapping

from toolgate.storage.database import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pinned_sources (
    source TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pins (
    source TEXT NOT NULL,
    tool TEXT NOT NULL,
    definition BLOB NOT NULL,
    PRIMARY KEY (source, tool)
) WITHOUT ROWID;
"""


class PinStore:
    """Keeps accepted definitions by source and tool; a source without tools is remembered, too."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.needs(_SCHEMA)

    async def load(self, source: str) -> dict[str, bytes] | None:
        """The accepted definitions of a source, or None if it was never seen."""

        def read(db: sqlite3.Connection) -> dict[str, bytes] | None:
            if not db.execute("SELECT 1 FROM pinned_sources WHERE source = ?", (source,)).fetchone():
                return None
            return dict(db.execute("SELECT tool, definition FROM pins WHERE source = ?", (source,)))

        return await self._database.do(read)

    async def save(self, source: str, definitions: Mapping[str, bytes]) -> None:
        """Accept these definitions; once this returns they survive a crash."""
        rows = [(source, tool, definition) for tool, definition in definitions.items()]

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO pinned_sources VALUES (?)", (source,))
            db.executemany("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", rows)

        await self._database.change(write)

    async def forget(self, source: str) -> None:
        """Forget a source: its next list is taken as the first."""

        def delete(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM pins WHERE source = ?", (source,))
            db.execute("DELETE FROM pinned_sources WHERE source = ?", (source,))

        await self._database.change(delete)
