"""Connect DBOS to PostgreSQL, so that runs continue soon after an outage.

DBOS tries a lost connection again after 1 s and then after twice as long each time, up to 90 s: after an outage of 20 s its
runs would stand still for another half a minute. Its engine here waits for the database where a connection is made, and
tries again every second, so that DBOS sees one failure however long the outage was.
"""

import threading
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

RETRY_SECONDS = 1.0

_CONNECTIONS = 5
_CONNECT_SECONDS = 10
_POOL_SECONDS = 86_400.0  # all connections may be waiting for the database: that is no error
_IDLE_TRANSACTION_MS = 5000  # a frozen node must not block the others


class ExecutorStopped(Exception):
    """The server stops, and nothing waits for the database any more."""


class DbosPostgresDatabase:
    """DBOS's engine for PostgreSQL."""

    def __init__(self, url: str, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._ready = self._closed = False
        self._stopped = threading.Event()
        self._opened: WeakSet[DBAPIConnection] = WeakSet()
        address = make_url(url).set(drivername="postgresql+psycopg")
        timeout = {} if "connect_timeout" in address.query else {"connect_timeout": _CONNECT_SECONDS}
        self.engine: Engine = create_engine(
            address, pool_size=_CONNECTIONS, max_overflow=0, pool_timeout=_POOL_SECONDS, connect_args=timeout
        )
        event.listen(self.engine, "do_connect", self._connect)

    def mark_ready(self) -> None:
        """Wait for the database from now on; until now one that is away was an error of the start."""
        self._ready = True

    def stop(self) -> None:
        """Let connections fail that wait for the database."""
        self._stopped.set()

    def close(self) -> None:
        """Close all connections, also those that a thread of DBOS has not returned: the pool would never close them."""
        self._closed = True
        self.engine.dispose()
        for connection in tuple(self._opened):
            connection.close()

    def _connect(self, dialect: Dialect, _: ConnectionPoolEntry, args: Any, parameters: Any) -> DBAPIConnection:
        while True:
            try:
                connection = dialect.connect(*args, **parameters)
                self._opened.add(connection)
                if self._closed:
                    connection.close()
                    raise ExecutorStopped
                cursor = connection.cursor()
                cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_TRANSACTION_MS}")
                cursor.close()
                connection.commit()  # the pool rolls back what is not committed
                return connection
            except dialect.loaded_dbapi.OperationalError:
                if not self._ready:
                    raise
                # This blocks a thread of DBOS, not an event loop.
                if self._stopped.wait(self._retry_seconds):
                    # Not the error of the database: DBOS would try again for ever, and the process could not end.
                    raise ExecutorStopped from None
