"""The streams of background responses, so that a client that lost one finds it again: events, in batches.

A stream belongs to the process that runs its response. When that process is gone before the stream has ended, nobody will
ever end it, and whoever notices may take it over. What an event says is none of this file's business.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from toolgate.conversation.ids import mint
from toolgate.storage.database import Connection, Database
from toolgate.storage.responses import Write

_FORGET_OLD = """
DELETE FROM response_events WHERE response IN (SELECT response FROM response_streams WHERE kept = 1 AND ended < ?)
"""
_BEAT = """
INSERT INTO runners (id, process, seen, host) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET process = excluded.process, seen = excluded.seen, host = excluded.host
"""
_OPEN = "INSERT INTO response_streams (response, runner, kept, whole) VALUES (?, ?, ?, 0)"
_APPEND = """
INSERT INTO response_events (response, first, last, frames) VALUES (?, ?, ?, ?)
ON CONFLICT (response, first) DO UPDATE SET last = excluded.last, frames = excluded.frames
"""
_BATCHES_AT_ONCE = 64
_END = b"\n\n"


class StoredStream(Struct, frozen=True):
    """What is known of a stream: who runs it, whether its events are kept, and whether it told its own end."""

    response: str
    runner: str
    kept: bool
    whole: bool
    ended: float | None


class StreamStore:
    """Keeps streams for one process, which must say from time to time that it is there: see `beat`."""

    def __init__(
        self,
        database: Database,
        *,
        stale_seconds: float = 30.0,
        keep_seconds: float = 86_400.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A process that was not heard of for `stale_seconds` is gone; events are kept for `keep_seconds` after the end."""
        self.runner = mint()
        self._host = _host()
        self._database = database
        self._stale = stale_seconds
        self._keep = keep_seconds
        self._clock = clock

    async def beat(self) -> None:
        """This process is there."""
        row = self._row()
        await self._database.change(lambda db: db.execute(_BEAT, row))

    async def leave(self) -> None:
        """This process runs nothing any more."""
        await self._database.change(lambda db: db.execute("DELETE FROM runners WHERE id = ?", (self.runner,)))

    def opening(self, response: str, kept: bool) -> Write:
        """Begins a stream that this process runs, and forgets the events of those that ended long ago."""
        now, row = self._clock(), self._row()

        def write(db: Connection) -> None:
            db.execute(_BEAT, row)
            db.execute(_OPEN, (response, self.runner, kept))
            db.execute(_FORGET_OLD, (now - self._keep,))
            db.execute("UPDATE response_streams SET kept = 0 WHERE kept = 1 AND ended < ?", (now - self._keep,))
            db.execute("DELETE FROM runners WHERE seen < ?", (now - self._keep,))

        return write

    async def append(self, response: str, first: int, frames: Sequence[bytes]) -> None:
        """Keep frames, the first of which has this number."""
        await self._database.change(lambda db: _append(db, response, first, frames))

    def ending(self, response: str, first: int, frames: Sequence[bytes], *, whole: bool) -> Write:
        """Keeps the last frames and ends the stream; `whole` when they tell how it ended."""
        now = self._clock()

        def write(db: Connection) -> None:
            _append(db, response, first, frames)
            update = "UPDATE response_streams SET ended = ?, whole = ? WHERE response = ?"
            db.execute(update, (now, whole, response))

        return write

    async def drop(self, response: str) -> None:
        """Keep none of the events: there are too many."""

        def write(db: Connection) -> None:
            db.execute("UPDATE response_streams SET kept = 0 WHERE response = ?", (response,))
            db.execute("DELETE FROM response_events WHERE response = ?", (response,))

        await self._database.change(write)

    def forgetting(self, response: str) -> Write:
        """Forgets the stream."""

        def write(db: Connection) -> None:
            db.execute("DELETE FROM response_streams WHERE response = ?", (response,))
            db.execute("DELETE FROM response_events WHERE response = ?", (response,))

        return write

    async def load(self, response: str) -> StoredStream | None:
        """What is known of a response's stream."""
        select = "SELECT response, runner, kept, whole, ended FROM response_streams WHERE response = ?"
        rows = await self._database.do(lambda db: db.execute(select, (response,)).fetchall())
        if not rows:
            return None
        id, runner, kept, whole, ended = rows[0]
        return StoredStream(id, runner, bool(kept), bool(whole), ended)

    async def after(self, response: str, number: int) -> list[bytes]:
        """The frames behind this number, or the first many of them; none when all are told."""
        select = """
        SELECT first, frames FROM response_events WHERE response = ? AND last > ? ORDER BY first LIMIT ?
        """
        values = (response, number, _BATCHES_AT_ONCE)
        rows = await self._database.do(lambda db: db.execute(select, values).fetchall())
        frames: list[bytes] = []
        for first, batch in rows:
            told = [frame + _END for frame in batch.split(_END)[:-1]]
            frames += told[max(0, number + 1 - first) :]
        return frames

    async def take_over(self, stream: StoredStream) -> bool:
        """Whether the stream is now this process's: its runner is gone, and nobody else was faster."""

        def write(db: Connection) -> bool:
            seen = db.execute("SELECT host, process, seen FROM runners WHERE id = ?", (stream.runner,)).fetchone()
            if stream.runner != self.runner and seen is not None and self._is_there(*seen):
                return False
            update = "UPDATE response_streams SET runner = ? WHERE response = ? AND runner = ? AND ended IS NULL"
            return db.execute(update, (self.runner, stream.response, stream.runner)).rowcount == 1

        return await self._database.change(write)

    def _row(self) -> tuple[str, int, float, str]:
        return (self.runner, os.getpid(), self._clock(), self._host)

    def _is_there(self, host: str, process: int, seen: float) -> bool:
        """A restart often gives a process the number of the one before, which then is not there any more."""
        if self._clock() - seen > self._stale:
            return False
        if host != self._host:  # its number says nothing here
            return True
        if process == os.getpid():
            return False
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _host() -> str:
    """Where a process can be looked for by its number: a machine, or a container on it."""
    try:
        inside = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        inside = 0
    return f"{platform.node()}/{inside}"


def _append(db: Connection, response: str, first: int, frames: Sequence[bytes]) -> None:
    """A batch that was given up halfway is written again, with more in it."""
    if frames:
        row = (response, first, first + len(frames) - 1, b"".join(frames))
        db.execute(_APPEND, row)
