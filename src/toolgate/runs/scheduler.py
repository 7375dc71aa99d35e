"""Schedule the runs of one node: claim them, renew their leases, and resume those that other nodes left.

A node that is stopped releases its runs, and one that is killed loses them with its leases; either way another node, or
the next start, resumes them. A run that has crashed its node again and again is ended.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.runs.executor import DiscardingStepLog, RunExecutor, StepsLost
from toolgate.runs.step_records import DurableStepLog
from toolgate.storage.runs import RunLeaseLost, RunStore, StoredRun

# Why a run ends without being performed: parked after too many crashes, lost when its steps are gone, unreadable when its
# stored request is.
EarlyEnd: TypeAlias = Literal["cancelled", "parked", "lost", "unreadable"]

_CANCEL_POLL_SECONDS = 0.1
_CLEANUP_SECONDS = 3600.0


class SchedulerOptions(Struct, frozen=True):
    """How often a node polls the runs, after how many crashes a run is ended, and how long ended runs are stored."""

    look_seconds: float = 2.0
    crashes: int = 3
    keep_seconds: float = 86_400.0


class RunAttempt:
    """One attempt at a run: the claim under which it is made, and the steps that were finished before."""

    def __init__(self, run: StoredRun, steps: DurableStepLog) -> None:
        self.run = run
        self.steps = steps
        self.cancelled = False
        self.released = False
        self.interrupted = False
        self.over = asyncio.Event()
        self._task = asyncio.current_task()

    def cancel(self) -> None:
        """End it as cancelled."""
        if not self.cancelled:
            self.cancelled = True
            self._interrupt()

    def release(self) -> None:
        """End it for another node to resume."""
        self.released = True
        self._interrupt()

    def lose(self) -> None:
        """End it because another node has claimed the run."""
        self._interrupt()

    def _interrupt(self) -> None:
        self.interrupted = True
        if self._task is not None:
            self._task.cancel()


class ScheduledRunHandler(Protocol):
    """Does the work of runs."""

    async def perform(self, attempt: RunAttempt) -> None:
        """Do the run's work and store its end; a cancelled attempt ends as such, any other interruption is raised."""

    async def stop(self, attempt: RunAttempt, how: EarlyEnd) -> None:
        """Store the end of a run without doing its work."""


class LeasedRunScheduler:
    """Claims runs under a lease, executes them on this node, and resumes those that other nodes have left."""

    def __init__(
        self,
        store: RunStore,
        executor: RunExecutor,
        handler: ScheduledRunHandler,
        options: SchedulerOptions,
        report: Callable[[str], None],
        on_resume: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`report` takes problems that the scheduler survives, in words for the log.

        `on_resume` takes the id of every run that another node, or an earlier process, has left and this node continues.
        """
        self.store = store
        self._executor = executor
        self._handler = handler
        self._options = options
        self._report = report
        self._on_resume = on_resume
        self._attempts: dict[str, RunAttempt] = {}
        self._ended: list[str] = []  # their steps are deleted with the next poll
        self._opening = asyncio.Lock()
        self._opened = self._closed = False
        self._poller: asyncio.Task[None] | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._expected: set[str] = set()  # scheduled here, but not claimed yet
        self._unstarted: set[str] = set()  # their start failed: it is tried again with the next poll
        self._changed = asyncio.Event()
        self._problem = ""

    def open(self) -> None:
        """Poll the runs from now on, first those that an earlier process left."""
        self._poller = asyncio.get_running_loop().create_task(self._poll_forever())

    def has(self, id: str) -> bool:
        """Return whether this node has claimed the run."""
        return id in self._attempts

    def schedule(self, id: str, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start a queued run here, soon; after `on_failure` it stays queued, for any node to find and start."""
        self._expected.add(id)
        task = asyncio.get_running_loop().create_task(self._start(id, on_failure))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def cancel(self, id: str) -> None:
        """Cancel a run on whichever node has it; returns when it has ended, or when that node does not react."""
        run = await self.store.cancel(id)
        attempt = self._attempts.get(id)
        if attempt is not None:
            attempt.cancel()
            await attempt.over.wait()
        elif run is not None and (claimed := await self.store.claim(id, run.steps)) is not None:
            # It is queued, and claimed so that no node starts it now.
            await self._handler.stop(RunAttempt(claimed, DiscardingStepLog()), "cancelled")
        elif run is not None:
            # Another node has it and sees the mark at its next poll; a dead one loses the run with its lease.
            seconds = self.store.lease_seconds + 3 * self._options.look_seconds
            for _ in range(round(seconds / _CANCEL_POLL_SECONDS)):
                run = await self.store.load(id)
                if run is None or run.is_over:
                    return
                await asyncio.sleep(_CANCEL_POLL_SECONDS)

    def cancel_unless(self, is_allowed: Callable[[str], bool]) -> int:
        """Cancel the runs here whose owners are not allowed any more; returns how many."""
        ended = [one for one in self._attempts.values() if not one.cancelled and not is_allowed(one.run.owner)]
        for attempt in ended:
            attempt.cancel()
        return len(ended)

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for running runs, then release them; start nothing new."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while (self._expected or self._attempts) and (left := deadline - clock()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        self._closed = True  # a workflow that DBOS starts from now on is refused in `_work`
        for task in (*self._starting, *([self._poller] if self._poller else [])):
            task.cancel()
        for attempt in tuple(self._attempts.values()):
            attempt.release()
            await attempt.over.wait()
        if self._opened:
            await self._executor.aclose()

    async def _start(self, id: str, on_failure: Callable[[], None]) -> None:
        try:
            await self._open_executor()
            await self._executor.begin(id)
        except Exception as error:  # noqa: BLE001  # no caller waits for it: the run stays queued and is started again
            self._expected.discard(id)
            self._unstarted.add(id)
            self._changed.set()
            self._report(f"The run {id} could not be started: {error}")
            on_failure()

    async def _open_executor(self) -> None:
        async with self._opening:  # at the first run: importing DBOS takes most of a second and 60 MB
            if not self._opened:
                self._opened = True
                try:
                    await self._executor.open(self._work)
                except BaseException:
                    self._opened = False
                    raise

    async def _work(self, id: str, steps: DurableStepLog) -> None:
        """Make one attempt at a run; returning ends it, and raising leaves it to another attempt."""
        # Read before the claim, which replaces the number of finished steps by what the executor has found.
        known = await self.store.load(id)
        finished = known.steps if known is not None else 0
        run = None if self._closed else await self.store.claim(id, len(steps.recorded))
        self._expected.discard(id)
        if run is None:
            known = await self.store.load(id)
            if known is not None and not known.is_over:
                raise RunLeaseLost  # another node has claimed it, or this one is closing
            self._ended.append(id)
            return
        attempt = self._attempts[id] = RunAttempt(run, steps)
        try:
            if run.cancel:
                await self._handler.stop(attempt, "cancelled")
            elif len(steps.recorded) < finished:
                # The steps were not restored with the run: which calls it has made is unknown, so none is made again.
                await self._handler.stop(attempt, "lost")
            elif run.attempts > self._options.crashes:
                await self._handler.stop(attempt, "parked")
            else:
                await self._handler.perform(attempt)
        except asyncio.CancelledError:
            if attempt.released:
                await self.store.release(id, run.token)  # another node need not wait for the end of the lease
            known = await self.store.load(id)
            if known is not None and not known.is_over:
                if not attempt.cancelled:
                    raise
                await self._handler.stop(attempt, "cancelled")  # the handler had not started its work
        except (RunLeaseLost, ToolgateError):
            raise  # another node has it, or the storage is away, which is reported elsewhere
        except Exception as error:
            self._report(f"An attempt at the run {id} failed, and another is made: {error!r}")
            raise
        finally:
            del self._attempts[id]
            attempt.over.set()
            self._changed.set()
        self._ended.append(id)

    async def _poll_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        cleaned = -_CLEANUP_SECONDS  # the first round cleans, too
        while True:
            if clock() - cleaned >= _CLEANUP_SECONDS:
                cleaned = clock()
                await self._survive(self.store.delete_ended_before(self._options.keep_seconds))
                await self._survive(self._delete_leftover_steps())
            await self._survive(self._poll())
            await asyncio.sleep(self._options.look_seconds)

    async def _poll(self) -> None:
        """Renew the leases of this node, interrupt what it has lost, and resume the runs that no node has."""
        if self._attempts:
            attempts = dict(self._attempts)  # a copy: attempts that begin during the renewal are not in its result
            held = {one.id: one for one in await self.store.renew(tuple(attempts))}
            for id, attempt in attempts.items():
                if id not in held or held[id].token != attempt.run.token:
                    # One that has stored its end is not lost, even if it does not know of that: its commit may not have
                    # been confirmed. If it were interrupted now, its usage might never be charged.
                    if not await self.store.has_ended(attempt.run):
                        attempt.lose()
                elif held[id].cancel:
                    attempt.cancel()
        for abandoned in await self.store.take_abandoned():
            await self._open_executor()
            try:
                await self._executor.resume(abandoned.id, abandoned.started)
            except StepsLost:  # DBOS does not know the workflow, though the run was started
                if (claimed := await self.store.claim(abandoned.id)) is not None:
                    await self._handler.stop(RunAttempt(claimed, DiscardingStepLog()), "lost")
            else:
                self._on_resume(abandoned.id)
        for id in tuple(self._unstarted):  # after an outage this is faster than to wait for the end of the lease
            await self._open_executor()
            await self._executor.begin(id)
            self._unstarted.discard(id)
        if self._ended:
            ended = tuple(self._ended)
            await self._executor.forget(ended)
            del self._ended[: len(ended)]  # not cleared: more may have ended meanwhile

    async def _delete_leftover_steps(self) -> None:
        """Delete the steps of runs that are not stored any more, or have ended in a process that was killed right then."""
        leftover = await self.store.not_live(await self._executor.known())
        if leftover:
            await self._open_executor()
            await self._executor.forget(leftover)

    async def _survive(self, polling: Awaitable[None]) -> None:
        """Report what fails, once, and leave it to the next poll."""
        problem = ""
        try:
            await polling
        except ToolgateError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001  # the executor's database may raise anything: polling goes on
            problem = f"{type(error).__name__}: {error}"
        if problem and problem != self._problem:
            self._report(problem)
        self._problem = problem
