"""The file in which DBOS keeps its steps where there is no PostgreSQL.

DBOS would bring the file up to its schema statement by statement, and one that a crash leaves half way is never opened
again. Here it has an engine whose statements are all of one transaction while it does so.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from toolgate.storage.files import make_private

_CONNECTIONS = 5
_PATIENCE_MS = 30_000


class StepsFile:
    """The engine, and whether the file is still being prepared."""

    def __init__(self, url: str) -> None:
        self._preparing = True
        make_private(Path(url.removeprefix("sqlite:///")))
        self.engine: Engine = create_engine(url, pool_size=_CONNECTIONS, max_overflow=0)
        event.listen(self.engine, "connect", _connected)
        event.listen(self.engine, "begin", self._begun)

    def prepared(self) -> None:
        """From now on transactions begin when something is written, so that readers need not wait for each other."""
        self._preparing = False

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _begun(self, connection: Connection) -> None:
        if self._preparing:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _connected(connection: DBAPIConnection, _: Any) -> None:
    connection.isolation_level = "IMMEDIATE"  # who is going to write says so at once and waits for its turn
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA journal_mode = WAL")  # halves the cost of a step
    cursor.execute("PRAGMA synchronous = FULL")  # a step is on the disk before its tool is taken for done
    cursor.close()
