"""One writer for the records that nobody waits for: they queue up and are written together, behind the answers they tell of.

The queue is bounded in number and bytes. While the database is away, what is queued waits for it; what finds no room, and
what is left when the server must stop, is lost: counted in the metrics and said in the log. It knows no kind of record.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from toolgate.conversation.errors import Overloaded
from toolgate.storage.database import Database, Unsettled
from toolgate.storage.responses import Write
from toolgate.telemetry.traced import Traced

MIB = 1024 * 1024


class Room(Struct, frozen=True):
    """How much may wait to be written, how much is written at once, and seconds between two writes or attempts."""

    most: int = 10_000
    most_bytes: int = 64 * MIB
    at_once: int = 200
    linger: float = 0.05
    retry: float = 2.0


class _Queued(Struct, frozen=True):
    kind: str
    write: Write
    size: int


class Writer:
    """Writes what it is given, in order, when it can."""

    def __init__(self, database: Database, traced: Traced, room: Room = Room()) -> None:  # noqa: B008  # an immutable value
        self._database = database
        self._traced = traced
        self._room = room
        self._queue: deque[_Queued] = deque()
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._giving_up = False
        self._losing = False

    def put(self, kind: str, write: Write, size: int = 0) -> None:
        """Have this written soon; it is lost when there is no room for it. Never waits and never fails."""
        if len(self._queue) >= self._room.most or self._bytes + size > self._room.most_bytes:
            self.lose(kind, "too much waits to be written")
            return
        self._queue.append(_Queued(kind, write, size))
        self._bytes += size
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._run())

    def lose(self, kind: str, why: str) -> None:
        """One record is not kept: it is counted, and the first of a row is logged."""
        self._traced.metrics.count_lost_record(kind)
        if not self._losing:
            self._losing = True
            self._traced.log.warning("records are lost", kind=kind, problem=why)

    async def flush(self, seconds: float = 2.0) -> None:
        """Return when nothing waits any more, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._writing is not None:
                    self._hurry.set()
                    await asyncio.wait({self._writing})

    async def aclose(self, seconds: float = 5.0) -> None:
        """Write what waits, within so many seconds; the rest is lost."""
        await self.flush(seconds)
        self._giving_up = True
        await self.flush(seconds)

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._pause(self._room.linger)
                await self._write_some()
        finally:
            self._writing = None
            self._hurry.clear()

    async def _write_some(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(self._room.at_once, len(self._queue)))]
        left = await self._left(batch)
        if left:
            self._traced.log.warning("records wait", problem="the database is away")
        while left and not self._giving_up:
            self._hurry.clear()
            await self._pause(self._room.retry)
            left = await self._left(left)
        for one in left:
            self.lose(one.kind, "the database was away until the end")
        self._bytes -= sum([one.size for one in batch])

    async def _left(self, batch: Sequence[_Queued]) -> Sequence[_Queued]:
        """Write the batch; what is left of it because the database is away."""
        try:
            await self._database.change(lambda db: [one.write(db) for one in batch])
        except Unsettled as unsettled:
            return () if await self._was_made(unsettled) else batch
        except Overloaded:
            return batch
        except Exception as error:  # noqa: BLE001  # the writer's edge: one bad record must not take others with it
            if len(batch) > 1:
                return [one for single in batch for one in await self._left([single])]
            self._traced.log.crash("records", error)
            self.lose(batch[0].kind, "it could not be written")
        else:
            self._losing = False
        return ()

    async def _was_made(self, unsettled: Unsettled) -> bool:
        """Whether the batch was written after all: what adds to a sum must not add to it twice."""
        while not self._giving_up:
            with suppress(Overloaded):
                return await self._database.was_made(unsettled)
            self._hurry.clear()
            await self._pause(self._room.retry)
        return True  # nobody will ever know

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
