"""Open the SQLite file in which DBOS stores its steps where there is no PostgreSQL.

DBOS would migrate the file statement by statement, and one that a crash leaves halfway cannot be opened again. Its engine
here makes one transaction of all statements while the file is migrated.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from toolgate.storage.sqlite_file_permissions import make_private

_CONNECTIONS = 5
_BUSY_TIMEOUT_MS = 30_000  # a node that is frozen during a write keeps its lock


class DbosSqliteDatabase:
    """DBOS's engine for SQLite."""

    def __init__(self, url: str) -> None:
        self._ready = False
        make_private(Path(url.removeprefix("sqlite:///")))
        self.engine: Engine = create_engine(url, pool_size=_CONNECTIONS, max_overflow=0)
        event.listen(self.engine, "connect", _configure)
        event.listen(self.engine, "begin", self._begin)

    def mark_ready(self) -> None:
        """Begin transactions at the first write from now on, so that readers do not wait for each other."""
        self._ready = True

    def stop(self) -> None:
        """Do nothing: no connection waits for a file."""

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _begin(self, connection: Connection) -> None:
        if not self._ready:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _configure(connection: DBAPIConnection, _: Any) -> None:
    connection.isolation_level = "IMMEDIATE"  # a writer takes the lock at its start and waits for it
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA journal_mode = WAL")  # halves the cost of a step
    cursor.execute("PRAGMA synchronous = FULL")  # a step is on the disk before its tool counts as done
    cursor.close()
