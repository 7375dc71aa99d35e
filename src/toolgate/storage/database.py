"""The database behind a storage URL, with its tables in their newest form.

All access goes through threads of its own, so that the event loop never waits for a disk or a network: one thread for
SQLite, as many as there are connections for PostgreSQL. Who finds all of them busy waits, and not for long; those who wait
take turns, caller by caller.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from toolgate.scheduling import CALLER, FairSlots
from toolgate.storage.engine import PATIENCE, Connection, Cursor, Duplicate, Engine, Unsettled, Work, unavailable
from toolgate.storage.migrations import Status, migrate, status

__all__ = ["Connection", "Cursor", "Database", "Duplicate", "Unsettled", "Work"]

_T = TypeVar("_T")


class Database:
    """Opened at the first use; what is reported done survives a crash."""

    def __init__(self, place: str | Path | None, *, connections: int = 8, patience: float = PATIENCE) -> None:
        """`sqlite:///path`, `sqlite://` for memory, or `postgresql://…`; a path is a SQLite file, None is memory.

        A request waits for its turn, for locks and for answers no longer than its patience, each time.
        """
        self.path = _path(place)
        self._engine = _engine(place, self.path, connections, patience)
        self._threads = ThreadPoolExecutor(self._engine.threads, thread_name_prefix="toolgate-storage")
        self._slots = FairSlots(self._engine.threads)
        self._patience = patience
        self._ready = False
        self._opening = Lock()

    async def open(self) -> None:
        """Bring the tables into their newest form; the first use does so, too."""
        await self._run(lambda: None)

    async def do(self, work: Work[_T]) -> _T:
        """What the work reads; Overloaded when the database does not answer."""
        return await self._run(partial(self._engine.do, work))

    async def change(self, work: Work[_T]) -> _T:
        """The work as one transaction, as if no other ran at the same time; Overloaded when nothing was changed.

        The one exception is `Unsettled`, which only whoever adds to what is there needs to know: see `was_made`.
        It may be run more than once until it succeeds, so it does nothing but read and write the database.
        """
        return await self._run(partial(self._engine.change, work))

    async def was_made(self, unsettled: Unsettled) -> bool:
        """Whether a change was made after all; Overloaded as long as nobody can say."""
        return await self._run(partial(self._engine.was_made, unsettled.number))

    async def status(self) -> Status:
        """Which form the tables have, and which they should have; changes nothing."""
        return await self._run(lambda: self._engine.do(partial(status, self._engine)), prepared=False)

    async def check(self) -> list[str]:
        """What is damaged, in words for a person."""
        return await self._run(self._engine.check, prepared=False)

    async def aclose(self) -> None:
        """Finish what is being written and close."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown()
        self._engine.close()

    async def _run(self, job: Callable[[], _T], *, prepared: bool = True) -> _T:
        await self._take_a_turn()
        try:
            loop = asyncio.get_running_loop()
            if prepared and not self._ready:
                await loop.run_in_executor(self._threads, self._prepare)
            return await loop.run_in_executor(self._threads, job)
        finally:
            self._slots.free()

    async def _take_a_turn(self) -> None:
        """Wait for a thread; the caller who keeps all of them busy has one turn to everybody else's one."""
        if self._slots.take():
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._slots.wait(CALLER.get())
        except TimeoutError:
            raise unavailable("too many requests wait for it") from None

    def _prepare(self) -> None:
        with self._opening:
            if not self._ready:
                migrate(self._engine)
                self._ready = True


def _path(place: str | Path | None) -> Path | None:
    """The file behind `sqlite:///path`."""
    if not isinstance(place, str):
        return place
    if not place.startswith("sqlite:"):
        return None
    path = place.removeprefix("sqlite://").removeprefix("/")
    return Path(path) if path else None


def _engine(place: str | Path | None, path: Path | None, connections: int, patience: float) -> Engine:
    scheme = place.partition(":")[0].partition("+")[0] if isinstance(place, str) else "sqlite"
    match scheme:
        case "sqlite":
            from toolgate.storage.sqlite import SqliteEngine

            return SqliteEngine(path, patience)
        case "postgresql" | "postgres":
            from toolgate.storage.postgres import PostgresEngine

            return PostgresEngine("postgresql:" + str(place).partition(":")[2], connections, patience)
    raise ValueError("storage must be sqlite:///… or postgresql://…")
