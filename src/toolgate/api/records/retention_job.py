"""Delete records that are older than their retention time: once an hour, a few rows at a time between other writes."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import asdict

from toolgate.config.settings import RecordSettings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.retention import RetentionStore
from toolgate.telemetry.log_writer import Logger

_PAUSE_SECONDS = 0.05  # in which other writes get their turn


def retention_days(settings: RecordSettings) -> dict[str, int | None]:
    """Return for how many days each kind of record is kept; None means for ever.

    Requests that are not recorded are kept for no day, so that those of an earlier configuration go.
    """
    return {kind: days or None for kind, days in asdict(settings.days).items()} | {"requests": settings.requests}


class RetentionJob:
    """Deletes old records while the server runs."""

    def __init__(
        self,
        retention: RetentionStore,
        log: Logger,
        days: Mapping[str, int | None],
        *,
        first: float = 60.0,
        every: float = 3600.0,
    ) -> None:
        """Records are kept for `days` by kind, None means for ever.

        The job runs `first` seconds after the start, then `every` so many seconds.
        """
        self._retention = retention
        self._log = log
        self._days = days
        self._first = first * (1 + os.getpid() % 8 / 8)  # so that several workers start one after the other
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to delete, soon after the server was started."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop; what is left is deleted after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def configure(self, days: Mapping[str, int | None]) -> None:
        """Keep records for so many days from now on."""
        self._days = days

    async def sweep(self) -> dict[str, int]:
        """Delete all old records and return how many there were of each kind."""
        deleted: Counter[str] = Counter()
        for kind, days in self._days.items():
            while days is not None and (found := await self._retention.sweep(kind, days)):
                deleted[kind] += found
                await asyncio.sleep(_PAUSE_SECONDS)
        while found := await self._retention.expire():
            deleted["expired"] += found
            await asyncio.sleep(_PAUSE_SECONDS)
        return {kind: count for kind, count in deleted.items() if count}

    async def _run(self) -> None:
        await asyncio.sleep(self._first)
        while True:
            try:
                if deleted := await self.sweep():
                    self._log.info("old records are deleted", **deleted)
            except GatewayOverloaded as error:  # they are deleted the next time
                self._log.warning("old records are not deleted", problem=str(error))
            await asyncio.sleep(self._every)
