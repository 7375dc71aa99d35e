"""Definitions of tools that a person has accepted, in SQLite, so that a changed one is noticed across restarts.

As with responses, one thread does all the work and a write is on the disk before it is reported done.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from toolgate.conversation.errors import Overloaded

_T = TypeVar("_T")
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

    def __init__(self, path: Path | None) -> None:
        """Open lazily, at the first use; without a path everything stays in memory."""
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="toolgate-pins")
        self._connection: sqlite3.Connection | None = None

    async def load(self, source: str) -> dict[str, bytes] | None:
        """The accepted definitions of a source, or None if it was never seen."""

        def read(db: sqlite3.Connection) -> dict[str, bytes] | None:
            if not db.execute("SELECT 1 FROM pinned_sources WHERE source = ?", (source,)).fetchone():
                return None
            return dict(db.execute("SELECT tool, definition FROM pins WHERE source = ?", (source,)))

        return await self._do(read)

    async def save(self, source: str, definitions: Mapping[str, bytes]) -> None:
        """Accept these definitions; once this returns they survive a crash."""
        rows = [(source, tool, definition) for tool, definition in definitions.items()]

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN")
                db.execute("INSERT OR IGNORE INTO pinned_sources VALUES (?)", (source,))
                db.executemany("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", rows)

        await self._do(write)

    async def forget(self, source: str) -> None:
        """Forget a source: its next list is taken as the first."""

        def delete(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN")
                db.execute("DELETE FROM pins WHERE source = ?", (source,))
                db.execute("DELETE FROM pinned_sources WHERE source = ?", (source,))

        await self._do(delete)

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


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_SCHEMA)
    return connection
