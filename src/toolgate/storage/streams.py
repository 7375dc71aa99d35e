"""The streams of background responses, so that a client that lost one finds it again: events, in batches.

Who may add to a stream is known by its run (`storage/runs.py`). What an event says is none of this file's business.
"""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from toolgate.storage.database import Connection, Database
from toolgate.storage.responses import Write

_FORGET_OLD = """
DELETE FROM response_events WHERE response IN (SELECT response FROM response_streams WHERE kept = 1 AND ended < ?)
"""
_OPEN = "INSERT INTO response_streams (response, kept, whole) VALUES (?, ?, 0)"
_APPEND = """
INSERT INTO response_events (response, first, last, frames) VALUES (?, ?, ?, ?)
ON CONFLICT (response, first) DO UPDATE SET last = excluded.last, frames = excluded.frames
"""
_AFTER = "SELECT first, frames FROM response_events WHERE response = ? AND last > ? ORDER BY first LIMIT ?"
_BATCHES_AT_ONCE = 64
_END = b"\n\n"


class StoredStream(Struct, frozen=True):
    """What is known of a stream: whether its events are kept, and whether it told its own end."""

    response: str
    kept: bool
    whole: bool
    ended: float | None


class StreamStore:
    """Keeps streams; their events for `keep_seconds` after the end."""

    def __init__(
        self, database: Database, *, keep_seconds: float = 86_400.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._keep = keep_seconds
        self._clock = clock

    def opening(self, response: str, kept: bool) -> Write:
        """Begins a stream, and forgets the events of those that ended long ago."""
        now = self._clock()

        def write(db: Connection) -> None:
            db.execute(_OPEN, (response, int(kept)))
            db.execute(_FORGET_OLD, (now - self._keep,))
            db.execute("UPDATE response_streams SET kept = 0 WHERE kept = 1 AND ended < ?", (now - self._keep,))

        return write

    async def append(self, response: str, first: int, frames: Sequence[bytes], *also: Write) -> None:
        """Keep frames, the first of which has this number, and make the other changes with it."""

        def write(db: Connection) -> None:
            for other in also:
                other(db)
            _append(db, response, first, frames)

        await self._database.change(write)

    def ending(self, response: str, first: int, frames: Sequence[bytes], *, whole: bool) -> Write:
        """Keeps the last frames and ends the stream; `whole` when they tell how it ended."""
        now = self._clock()

        def write(db: Connection) -> None:
            _append(db, response, first, frames)
            update = "UPDATE response_streams SET ended = ?, whole = ? WHERE response = ?"
            db.execute(update, (now, int(whole), response))

        return write

    async def drop(self, response: str, *also: Write) -> None:
        """Keep none of the events: there are too many."""

        def write(db: Connection) -> None:
            for other in also:
                other(db)
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
        select = "SELECT response, kept, whole, ended FROM response_streams WHERE response = ?"
        rows = await self._database.do(lambda db: db.execute(select, (response,)).fetchall())
        if not rows:
            return None
        id, kept, whole, ended = rows[0]
        return StoredStream(id, bool(kept), bool(whole), ended)

    async def after(self, response: str, number: int) -> list[bytes]:
        """The frames behind this number, or the first many of them; none when all are told."""
        values = (response, number, _BATCHES_AT_ONCE)
        rows = await self._database.do(lambda db: db.execute(_AFTER, values).fetchall())
        frames: list[bytes] = []
        for first, batch in rows:
            told = [frame + _END for frame in bytes(batch).split(_END)[:-1]]
            frames += told[max(0, number + 1 - first) :]
        return frames

    async def all(self, response: str) -> list[bytes]:
        """All frames that are kept."""
        frames: list[bytes] = []
        while more := await self.after(response, len(frames) - 1):
            frames += more
        return frames


def _append(db: Connection, response: str, first: int, frames: Sequence[bytes]) -> None:
    """A batch that was given up halfway is written again, with more in it."""
    if frames:
        db.execute(_APPEND, (response, first, first + len(frames) - 1, b"".join(frames)))
