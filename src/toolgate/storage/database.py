"""One SQLite file, read and written by one thread.

A write is on the disk before it is reported done: WAL with `synchronous=FULL`. All access goes through one thread, so that
the event loop never waits for the disk; other processes may use the same file, and SQLite lets one of them write at a time.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from toolgate.conversation.errors import Overloaded

_T = TypeVar("_T")


class Database:
    """A database with these tables, opened lazily at the first use; without a path everything stays in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="toolgate-storage")
        self._connection: sqlite3.Connection | None = None
        self._schemas: list[str] = []

    def needs(self, schema: str) -> None:
        """Have these tables made before the first use, or at once if the database is open already."""
        self._schemas.append(schema)
        if self._connection is not None:
            self._thread.submit(self._connection.executescript, schema).result()

    async def do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """What the work gives, done in the database's thread; Overloaded when the disk or a lock stands in its way."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)
        except sqlite3.OperationalError as error:
            raise Overloaded(
                f"The storage is not available: {error}.", code="storage_unavailable", retry_after=5
            ) from error

    async def change(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """The same as one transaction."""

        def whole(db: sqlite3.Connection) -> _T:
            with db:
                db.execute("BEGIN IMMEDIATE")
                return work(db)

        return await self.do(whole)

    async def aclose(self) -> None:
        """Finish what is being written and close."""
        if self._connection is not None:
            await self.do(lambda db: db.close())
            self._connection = None
        self._thread.shutdown()

    def _work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._connection is None:
            self._connection = self._open()
        return work(self._connection)

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA busy_timeout = 5000")
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            for schema in self._schemas:
                connection.executescript(schema)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Two that make the same file at the same moment may find it locked here, whatever the busy timeout says."""
    for _ in range(50):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            time.sleep(0.1)
    connection.execute("PRAGMA journal_mode = WAL")
