"""Store the frames of background responses, so that a client that lost its stream can resume it.

Which node may append to a stream is known by its run (`runs.py`). The content of frames is not read here.
"""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ClockJumps
from toolgate.storage.responses import Write

KEPT_SECONDS = 86_400.0
_FORGET_OLD = """
DELETE FROM response_events WHERE response IN (SELECT response FROM response_streams WHERE kept = 1 AND ended < ?)
"""
_OLD = "SELECT response FROM response_streams WHERE kept = 1 AND ended < ? ORDER BY ended LIMIT ?"
_OPEN = "INSERT INTO response_streams (response, kept, whole) VALUES (?, ?, 0)"
_APPEND = """
INSERT INTO response_events (response, first, last, frames) VALUES (?, ?, ?, ?)
ON CONFLICT (response, first) DO UPDATE SET last = excluded.last, frames = excluded.frames
"""
_AFTER = "SELECT first, frames FROM response_events WHERE response = ? AND last > ? ORDER BY first LIMIT ?"
_BATCHES_AT_ONCE = 64
# Ends a frame of server-sent events, `event: …\ndata: {…}\n\n`: a batch is one text that is split here.
_END = b"\n\n"


def delete_expired_frames(db: SqlConnection, now: float, most: int) -> int:
    """Delete the frames of at most so many streams that ended a day ago, and return how many streams."""
    old = db.execute(_OLD, (now - KEPT_SECONDS, most)).fetchall()
    rows = [tuple(row) for row in old]
    db.executemany("DELETE FROM response_events WHERE response = ?", rows)
    db.executemany("UPDATE response_streams SET kept = 0 WHERE response = ?", rows)
    return len(old)


class StreamStatus(Struct, frozen=True):
    """The state of a stream: whether its frames are stored, and whether it has a last frame of its own."""

    response: str
    kept: bool
    whole: bool
    ended: float | None


class StreamStore:
    """Stores streams; their frames for `keep_seconds` after the end."""

    def __init__(
        self,
        database: Database,
        *,
        keep_seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._keep = keep_seconds
        self._clock = clock
        self._jumps = ClockJumps(clock, steady)

    def opening(self, response: str, kept: bool) -> Write:
        """Return the write that opens a stream, and deletes the frames of those that ended long ago."""
        oldest = self._clock() - self._keep - self._jumps.forward(self._keep)

        def write(db: SqlConnection) -> None:
            db.execute(_OPEN, (response, int(kept)))
            db.execute(_FORGET_OLD, (oldest,))
            db.execute("UPDATE response_streams SET kept = 0 WHERE kept = 1 AND ended < ?", (oldest,))

        return write

    async def append(self, response: str, first: int, frames: Sequence[bytes], *also: Write) -> None:
        """Store frames, the first of which has this number, together with the other writes."""

        def write(db: SqlConnection) -> None:
            for other in also:
                other(db)
            _append(db, response, first, frames)

        await self._database.change(write)

    def ending(self, response: str, first: int, frames: Sequence[bytes], *, whole: bool) -> Write:
        """Return the write that stores the last frames and ends the stream; `whole` when they end the response."""
        now = self._clock()

        def write(db: SqlConnection) -> None:
            _append(db, response, first, frames)
            update = "UPDATE response_streams SET ended = ?, whole = ? WHERE response = ?"
            db.execute(update, (now, int(whole), response))

        return write

    async def drop(self, response: str, *also: Write) -> None:
        """Delete all frames and store none from now on: there are too many."""

        def write(db: SqlConnection) -> None:
            for other in also:
                other(db)
            db.execute("UPDATE response_streams SET kept = 0 WHERE response = ?", (response,))
            db.execute("DELETE FROM response_events WHERE response = ?", (response,))

        await self._database.change(write)

    def forgetting(self, response: str) -> Write:
        """Return the write that deletes the stream."""

        def write(db: SqlConnection) -> None:
            db.execute("DELETE FROM response_streams WHERE response = ?", (response,))
            db.execute("DELETE FROM response_events WHERE response = ?", (response,))

        return write

    async def load(self, response: str) -> StreamStatus | None:
        """Return the state of a response's stream."""
        select = "SELECT response, kept, whole, ended FROM response_streams WHERE response = ?"
        rows = await self._database.read(lambda db: db.execute(select, (response,)).fetchall())
        if not rows:
            return None
        id, kept, whole, ended = rows[0]
        return StreamStatus(id, bool(kept), bool(whole), ended)

    async def after(self, response: str, number: int) -> list[bytes]:
        """Return the frames after this number, or the first many of them."""
        values = (response, number, _BATCHES_AT_ONCE)

        def read(db: SqlConnection) -> list[bytes]:
            frames: list[bytes] = []
            for first, batch in db.execute(_AFTER, values).fetchall():
                split_frames = [frame + _END for frame in bytes(batch).split(_END)[:-1]]
                frames += split_frames[max(0, number + 1 - first) :]
            return frames

        return await self._database.read(read)

    async def all(self, response: str) -> list[bytes]:
        """Return all frames that are stored."""
        frames: list[bytes] = []
        while more := await self.after(response, len(frames) - 1):
            frames += more
        return frames


def _append(db: SqlConnection, response: str, first: int, frames: Sequence[bytes]) -> None:
    """Store a batch of frames; one whose write failed is written again, with more in it."""
    if frames:
        db.execute(_APPEND, (response, first, first + len(frames) - 1, b"".join(frames)))
