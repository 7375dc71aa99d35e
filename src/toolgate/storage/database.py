"""Open the database of a storage URL and migrate its tables.

All access goes through threads of its own, so that the event loop never waits for a disk or a network: one thread for
SQLite, as many as there are connections for PostgreSQL. While all of them are busy others wait for a limited time, caller by
caller in turn.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from toolgate.storage.job_threads import JobKind, JobThreads, SlowJobStats
from toolgate.storage.migrations import SchemaStatus, migrate, status
from toolgate.storage.sql_engine import (
    TIMEOUT_SECONDS,
    CommitUncertain,
    DuplicateRow,
    SqlConnection,
    SqlCursor,
    SqlEngine,
    Work,
    unavailable,
)

__all__ = ["CommitUncertain", "Database", "DuplicateRow", "SlowJobStats", "SqlConnection", "SqlCursor", "Work"]

_T = TypeVar("_T")


class Database:
    """A database that is opened at the first use; what is reported done survives a crash."""

    def __init__(
        self,
        place: str | Path | None,
        *,
        connections: int = 8,
        timeout: float = TIMEOUT_SECONDS,
        observe: Callable[[SlowJobStats], None] | None = None,
    ) -> None:
        """`sqlite:///path`, `sqlite://` for memory, or `postgresql://…`; a path is a SQLite file, None is memory.

        A request waits for locks and for answers no longer than `timeout` seconds, each time. `observe` is called for jobs
        that take long.
        """
        self.path, self._engine = _engine(place, connections, timeout)
        self._jobs = JobThreads(self._engine, self._prepare, observe)
        self._ready = False
        self._opening = Lock()

    async def open(self) -> None:
        """Migrate the tables; the first use does so, too."""
        await self._jobs.run(JobKind.MAINTENANCE, self._prepare)

    async def read(self, work: Work[_T]) -> _T:
        """Return what the work reads; GatewayOverloaded when the database does not answer."""
        return await self._jobs.run(JobKind.READ, work)

    async def change(self, work: Work[_T]) -> _T:
        """Run the work as one serializable transaction; GatewayOverloaded when nothing was changed.

        The one exception is `CommitUncertain`, which matters to callers that add to what is there: see `was_committed`.
        The work may be run more than once until it succeeds, so that it does nothing but read and write the database.
        """
        return await self._jobs.run(JobKind.CHANGE, work)

    async def was_committed(self, uncertain: CommitUncertain) -> bool:
        """Return whether a change was committed after all; GatewayOverloaded as long as that is not known."""
        if uncertain.outcome is not None:
            if (outcome := uncertain.outcome()) is None:
                raise unavailable("the last change is still being made")
            return outcome.error is None
        return await self._jobs.run(JobKind.MAINTENANCE, partial(self._engine.was_committed, uncertain.number))

    async def status(self) -> SchemaStatus:
        """Return the version of the tables, and the one that this program needs; changes nothing."""
        return await self._jobs.run(JobKind.MAINTENANCE, lambda: self._engine.read(partial(status, self._engine)))

    async def check(self) -> list[str]:
        """Return what is damaged, in sentences for a person."""
        return await self._jobs.run(JobKind.MAINTENANCE, self._engine.check)

    async def aclose(self) -> None:
        """Finish running writes and close."""

        def close() -> None:
            self._jobs.close()
            self._engine.close()

        await asyncio.to_thread(close)

    def _prepare(self) -> None:
        # Looked at without the lock first: this runs before every job. The lock is for threads that open it at once.
        if self._ready:
            return
        with self._opening:
            if not self._ready:
                migrate(self._engine)
                self._ready = True


def _engine(place: str | Path | None, connections: int, timeout: float) -> tuple[Path | None, SqlEngine]:
    """Return the engine of a storage URL or path, and the file of a SQLite one."""
    if not isinstance(place, str):
        scheme, path = "sqlite", place
    else:
        # As in SQLAlchemy's URLs: a driver may follow the scheme (`postgresql+psycopg://`), and a path begins behind the
        # third slash, so that `sqlite:////var/lib/t.db` is an absolute one.
        scheme = place.partition(":")[0].partition("+")[0]
        file = place.removeprefix("sqlite://").removeprefix("/") if place.startswith("sqlite:") else ""
        path = Path(file) if file else None
    # Imported where used: a server needs the driver of one of them only.
    match scheme:
        case "sqlite":
            from toolgate.storage.sqlite import SqliteEngine

            return path, SqliteEngine(path, timeout)
        case "postgresql" | "postgres":
            from toolgate.storage.postgres import PostgresEngine

            return None, PostgresEngine("postgresql:" + str(place).partition(":")[2], connections, timeout)
    raise ValueError("storage must be sqlite:///… or postgresql://…")
