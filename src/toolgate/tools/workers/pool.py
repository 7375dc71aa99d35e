"""Share a few worker processes among many calls: one call each at a time, the others wait, and callers take turns.

Processes are started when needed, used again after a call that ended well, and ended when idle.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from toolgate.scheduling import FairSemaphore
from toolgate.tools.tool import CallClock, ReportProgress, ToolCallFailed, UnlimitedCallClock, ignore_progress
from toolgate.tools.workers import frames
from toolgate.tools.workers.process import ToolWorker, WorkerLimits, WorkerOutputTail


class ToolWorkerPool:
    """Sends requests to workers; the worker of a cancelled call gets a moment to stop and is then killed."""

    def __init__(self, limits: WorkerLimits | None = None) -> None:
        self._limits = limits or WorkerLimits()
        self._slots = FairSemaphore(self._limits.workers)
        self._idle: dict[ToolWorker, asyncio.TimerHandle] = {}
        self._busy: dict[ToolWorker, str] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False
        self.log = WorkerOutputTail()

    async def request(
        self,
        request: frames.WorkerRequest,
        report: ReportProgress = ignore_progress,
        clock: CallClock = UnlimitedCallClock(),  # noqa: B008  # it keeps nothing
        caller: str = "",
    ) -> frames.WorkerResponse:
        """Send a request to a free worker; ToolCallFailed if its process ended, or none became free."""
        clock.stop()  # waiting in the queue is not the tool's own time
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await self._slots.acquire(caller)
        except TimeoutError:
            raise ToolCallFailed("All tool processes are busy; nothing was run. Try again later.") from None
        clock.start()
        # Each way out of here gives the slot back exactly once: at once, with the idle worker, or when its process
        # is gone.
        try:
            worker = self._free_worker()
        except ToolCallFailed:
            self._slots.release(caller)
            raise
        self._busy[worker] = caller
        try:
            response = await worker.request(request, report)
        except asyncio.CancelledError:
            # The call must not wait for the grace period, which would hold up the response to its client.
            self._in_background(self._cancel(worker))
            raise
        except BaseException:
            self._in_background(self._end(worker))
            raise
        if isinstance(response, frames.ToolWorkerErrorFrame) and response.last:
            self._in_background(self._end(worker))
        else:
            self._release(worker)
        return response

    async def aclose(self) -> None:
        """End every process; calls that still run fail."""
        self._closed = True
        for worker in list(self._idle):
            self._retire(worker)
        for worker in self._busy:
            worker.kill()
        # A busy worker leaves `_busy` only when the task of its call runs and sees that the process has ended.
        while self._busy or self._endings:
            await asyncio.wait(self._endings) if self._endings else await asyncio.sleep(0.01)

    def _free_worker(self) -> ToolWorker:
        if self._closed:
            raise ToolCallFailed("The server is closing.")
        # The worker that was used last comes first, so that the others reach their idle time and end.
        while self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            if worker.is_alive:
                return worker
            self._in_background(worker.end())
        return ToolWorker(self._limits, self.log)

    def _release(self, worker: ToolWorker) -> None:
        """Let other calls use the worker, until it has been idle for long."""
        timer = asyncio.get_running_loop().call_later(self._limits.idle, self._retire, worker)
        self._idle[worker] = timer
        self._slots.release(self._busy.pop(worker))
        if self._closed:  # while the call ran: `aclose` has ended the workers that were idle then
            self._retire(worker)

    def _retire(self, worker: ToolWorker) -> None:
        """End an idle worker."""
        timer = self._idle.pop(worker, None)
        if timer is not None:
            timer.cancel()
            self._in_background(worker.end())

    async def _cancel(self, worker: ToolWorker) -> None:
        if await worker.cancel():
            self._release(worker)
        else:
            await self._end(worker)

    async def _end(self, worker: ToolWorker) -> None:
        """End a busy worker; its slot is free only when its process is gone."""
        try:
            await worker.end()
        finally:
            self._slots.release(self._busy.pop(worker))

    def _in_background(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run this without delaying the call; `aclose` waits for it."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
