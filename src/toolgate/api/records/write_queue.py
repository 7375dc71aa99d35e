"""Queue records that no client waits for, and write them together after the responses they belong to.

The queue is bounded in number and bytes. While the database is away, queued records wait. If it is full, the owner with most
of them loses its last ones. These, and those left when the server stops, are counted in the metrics and logged. It must not
know what kinds of records exist.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter

from msgspec import Struct

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.scheduling import FairQueue
from toolgate.storage.database import CommitUncertain, Database
from toolgate.storage.responses import Write
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics

MIB = 1024 * 1024


class WriteQueueLimits(Struct, frozen=True):
    """How much may be queued, how much is written at once, and the seconds between two writes or attempts."""

    most: int = 10_000
    most_bytes: int = 64 * MIB
    at_once: int = 200
    linger: float = 0.2  # for more to come: a transaction costs far more than a row
    retry: float = 2.0


# What a record takes beside its content, about.
_RECORD_BYTES = 500


class _Queued(Struct, frozen=True):
    owner: str
    kind: str
    write: Write
    size: int
    records: int = 1
    written: Callable[[], None] | None = None
    singly: Callable[[], Iterable[Write]] | None = None


class WriteQueue:
    """Writes records when the database can be reached: those of an owner in their order, and owners in turn."""

    def __init__(
        self,
        database: Database,
        log: Logger,
        metrics: Metrics,
        limits: WriteQueueLimits = WriteQueueLimits(),  # noqa: B008  # an immutable value
    ) -> None:
        self._database = database
        self._log = log
        self._metrics = metrics
        self._limits = limits
        self._queue: FairQueue[_Queued] = FairQueue()
        self._weights: Counter[str] = Counter()  # of what waits, by owner
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closing = False
        self._losing: set[str] = set()  # the kinds of which records were lost since the last write

    @property
    def has_room(self) -> bool:
        """Whether a small record fits."""
        return len(self._queue) < self._limits.most and self._bytes < self._limits.most_bytes

    def put(
        self,
        owner: str,
        kind: str,
        write: Write,
        size: int = 0,
        records: int = 1,
        written: Callable[[], None] | None = None,
        singly: Callable[[], Iterable[Write]] | None = None,
    ) -> None:
        """Queue a record, or one write of several `records`. Returns at once, never fails.

        If the queue is full, it is lost, or the last ones of an owner with more are lost for it.
        `written` is called when it is in the database. `singly` returns one write for each record, which are tried if the
        write of all fails.
        """
        queued = _Queued(owner, kind, write, size, records, written, singly)
        while len(self._queue) >= self._limits.most or self._bytes + size > self._limits.most_bytes:
            evicted = self._evict_for(queued)
            self.lose(evicted.kind, "too much waits to be written", evicted.records)
            if evicted is queued:
                return
        self._queue.put(owner, queued)
        self._weights[owner] += _weight(queued)
        self._bytes += size
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._run())

    def _evict_for(self, queued: _Queued) -> _Queued:
        """Return what is lost: the last record of the owner with the most, or this one if its owner has hardly less."""
        owner, most = max(self._weights.items(), key=itemgetter(1), default=(queued.owner, 0))
        # With a smaller difference, two owners would evict each other's records in turn.
        if most < self._weights[queued.owner] + 2 * _weight(queued):
            return queued
        evicted = self._queue.take_last(owner)
        self._forget_weight(evicted)
        self._bytes -= evicted.size
        return evicted

    def _forget_weight(self, queued: _Queued) -> None:
        self._weights[queued.owner] -= _weight(queued)
        if not self._weights[queued.owner]:
            del self._weights[queued.owner]

    def lose(self, kind: str, why: str, records: int = 1) -> None:
        """Count records that are not stored; the first of a series is logged for each kind."""
        self._metrics.count_lost_record(kind, records)
        if kind not in self._losing:
            self._losing.add(kind)
            self._log.warning("records are lost", kind=kind, problem=why)

    async def flush(self, seconds: float = 2.0) -> None:
        """Return when the queue is empty, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._writing is not None:
                    self._hurry.set()
                    await asyncio.wait({self._writing})

    async def aclose(self, seconds: float = 5.0) -> None:
        """Write what is queued within so many seconds, and lose the rest."""
        await self.flush(seconds)
        self._closing = True  # from now on each batch is tried once more and then lost, so that the second flush ends
        await self.flush(seconds)

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._pause(self._limits.linger)
                batch = self._take_batch()
                unwritten = await self._write(batch)
                if unwritten:
                    self._log.warning("records wait", problem="the database is away")
                while unwritten and not self._closing:
                    self._hurry.clear()
                    await self._pause(self._limits.retry)
                    unwritten = await self._write(unwritten)
                for one in unwritten:
                    self.lose(one.kind, "the database was away until the end", one.records)
                self._bytes -= sum([one.size for one in batch])  # not before: while it waits, it is still in memory
        finally:
            self._writing = None
            self._hurry.clear()

    def _take_batch(self) -> list[_Queued]:
        # A part of the room at most: what is being written while the database is away makes no room for other owners.
        batch: list[_Queued] = []
        size = 0
        while self._queue and len(batch) < self._limits.at_once and size <= self._limits.most_bytes // 4:
            batch.append(one := self._queue.take())
            self._forget_weight(one)
            size += one.size
        return batch

    async def _write(self, batch: Sequence[_Queued]) -> Sequence[_Queued]:
        """Write the batch; return what could not be written because the database is away."""
        try:
            await self._database.change(lambda db: [one.write(db) for one in batch])
        except CommitUncertain as unsettled:
            if not await self._was_committed(unsettled):
                return batch
        except GatewayOverloaded:
            return batch
        except Exception as error:  # noqa: BLE001  # one bad record must not take the others of its batch with it
            if len(batch) > 1:
                return [one for single in batch for one in await self._write([single])]
            if (singly := batch[0].singly) is not None:
                parts = [_Queued(batch[0].owner, batch[0].kind, write, 0) for write in singly()]
                return [one for part in parts for one in await self._write([part])]
            self._log.crash("records", error)
            self.lose(batch[0].kind, "it could not be written", batch[0].records)
            return ()
        self._losing.clear()
        for one in batch:
            if one.written is not None:
                one.written()
        return ()

    async def _was_committed(self, unsettled: CommitUncertain) -> bool:
        """Return whether the batch was written after all: what adds to a sum must not add to it twice."""
        while not self._closing:
            with suppress(GatewayOverloaded):
                return await self._database.was_committed(unsettled)
            self._hurry.clear()
            await self._pause(self._limits.retry)
        return True  # it cannot be found out any more, and writing twice would be worse

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()


def _weight(queued: _Queued) -> int:
    return queued.size + _RECORD_BYTES
