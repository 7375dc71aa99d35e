"""Once an hour, what was kept long enough goes: a few rows at a time, so that nobody who writes has to wait for it."""

import asyncio
import os
from collections import Counter

from msgspec.structs import asdict

from toolgate.config.settings import KeepDays
from toolgate.conversation.errors import Overloaded
from toolgate.storage.retention import AT_ONCE, Retention
from toolgate.telemetry.traced import Traced

_BREATH = 0.05


class Sweeper:
    """Sweeps while the server runs; `days` may change meanwhile."""

    def __init__(self, retention: Retention, traced: Traced, *, first: float = 60.0, every: float = 3600.0) -> None:
        self.days = KeepDays()
        self._retention = retention
        self._traced = traced
        self._first = first * (1 + os.getpid() % 8 / 8)  # several workers begin one after the other
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, soon after the server did."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop; what is half swept is swept another time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def sweep(self) -> dict[str, int]:
        """Delete all that was kept long enough; how much of each kind there was."""
        gone: Counter[str] = Counter()
        for kind, days in asdict(self.days).items():
            found = AT_ONCE if days else 0
            while found >= AT_ONCE:
                found = await self._retention.sweep(kind, days)
                gone[kind] += found
                await asyncio.sleep(_BREATH)
        return {kind: count for kind, count in gone.items() if count}

    async def _run(self) -> None:
        await asyncio.sleep(self._first)
        while True:
            try:
                if gone := await self.sweep():
                    self._traced.log.info("old records are deleted", **gone)
            except Overloaded as error:  # the next time will do
                self._traced.log.warning("old records are not deleted", problem=str(error))
            await asyncio.sleep(self._every)
