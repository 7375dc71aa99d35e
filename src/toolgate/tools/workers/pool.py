"""A few worker processes for many calls: one call each at a time, the others wait, and callers take turns.

Processes are started when needed, kept while they behave and are asked, and ended when idle.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from toolgate.scheduling import FairSemaphore
from toolgate.tools.tool import Clock, NoClock, Tell, ToolFailure, in_silence
from toolgate.tools.workers import frames
from toolgate.tools.workers.worker import Limits, Log, Worker


class WorkerPool:
    """Asks workers; a call that is cancelled gives its worker a moment to stop and then kills it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._slots = FairSemaphore(self._limits.workers)
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        self._busy: dict[Worker, str] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False
        self.log = Log()

    async def ask(
        self,
        question: frames.Question,
        tell: Tell = in_silence,
        clock: Clock = NoClock(),  # noqa: B008  # it keeps nothing
        caller: str = "",
    ) -> frames.Answer:
        """The answer of whichever worker is free; ToolFailure if its process came to an end, or none became free."""
        await self._turn(clock, caller)
        try:
            worker = self._free_worker()
        except ToolFailure:
            self._slots.release(caller)
            raise
        self._busy[worker] = caller
        try:
            answer = await worker.ask(question, tell)
        except asyncio.CancelledError:
            self._later(self._calm(worker))
            raise
        except BaseException:
            self._later(self._end(worker))
            raise
        if isinstance(answer, frames.Failed) and answer.last:
            self._later(self._end(worker))
        else:
            self._keep(worker)
        return answer

    async def _turn(self, clock: Clock, caller: str) -> None:
        """Stand in line, at no cost of the call's own time."""
        clock.stop()
        try:
            async with asyncio.timeout(self._limits.line):
                await self._slots.acquire(caller)
        except TimeoutError:
            raise ToolFailure("All tool processes are busy; nothing was run. Try again later.") from None
        clock.start()

    async def aclose(self) -> None:
        """End every process; calls that still run fail."""
        self._closed = True
        for worker in list(self._idle):
            self._retire(worker)
        for worker in self._busy:
            worker.kill()
        while self._busy or self._endings:
            await asyncio.wait(self._endings) if self._endings else await asyncio.sleep(0.01)

    def _free_worker(self) -> Worker:
        if self._closed:
            raise ToolFailure("The server is closing.")
        while self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            if worker.lives:
                return worker
            self._later(worker.end())
        return Worker(self._limits, self.log)

    def _keep(self, worker: Worker) -> None:
        timer = asyncio.get_running_loop().call_later(self._limits.idle, self._retire, worker)
        self._idle[worker] = timer
        self._slots.release(self._busy.pop(worker))
        if self._closed:
            self._retire(worker)

    def _retire(self, worker: Worker) -> None:
        """End a worker that nobody asks."""
        timer = self._idle.pop(worker, None)
        if timer is not None:
            timer.cancel()
            self._later(worker.end())

    async def _calm(self, worker: Worker) -> None:
        if await worker.calm():
            self._keep(worker)
        else:
            await self._end(worker)

    async def _end(self, worker: Worker) -> None:
        """End a worker that was asked; its slot is free only when its process is gone."""
        try:
            await worker.end()
        finally:
            self._slots.release(self._busy.pop(worker))

    def _later(self, ending: Coroutine[Any, Any, None]) -> None:
        """Do it without the caller waiting for it; `aclose` does."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
