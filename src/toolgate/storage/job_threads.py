"""Run the jobs of a database in threads of its own, callers in turn, so that the event loop never waits for a disk.

A thread that has ended a job takes the next one itself: a busy event loop delays the results, and not the jobs behind them.
Knows neither tables nor what a job does.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from msgspec import Struct

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.scheduling import CALLER, FairQueue
from toolgate.storage.sql_engine import CommitUncertain, DatabaseWorkOutcome, SqlEngine, unavailable

_T = TypeVar("_T")

# Jobs that take longer are reported.
SLOW_SECONDS = 1.0

# So long a task waits for the end of work that a thread has begun.
END_SECONDS = 60.0

# A report names no more jobs than this: hundreds of changes may share one commit.
_NAMES = 8


class SlowJobStats(Struct, frozen=True):
    """Jobs that took long: which, their seconds in all and in the commit alone, and how many others wait for a thread."""

    jobs: tuple[str, ...]
    seconds: float
    commit_seconds: float
    waiting: int


class JobKind(Enum):
    """What a job does with the database."""

    READ = "read"
    CHANGE = "change"
    # Opens, checks or describes the database itself, and is never part of a transaction with others.
    MAINTENANCE = "maintenance"


class _Job:
    """One piece of work that a task waits for."""

    __slots__ = ("caller", "expiry", "future", "kind", "loop", "outcome", "queued", "work")

    def __init__(self, kind: JobKind, work: Callable[..., Any]) -> None:
        self.kind = kind
        self.work = work
        self.caller = CALLER.get()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.queued = time.monotonic()
        self.outcome: DatabaseWorkOutcome | None = None
        self.expiry: asyncio.TimerHandle

    def resolve(self, outcome: DatabaseWorkOutcome) -> None:
        """Pass the outcome on to the waiting task, unless that was cancelled or has waited for too long."""
        self.outcome = outcome
        if self.future.done():
            return
        if outcome.error is None:
            self.future.set_result(outcome.result)
        else:
            self.future.set_exception(outcome.error)


class JobThreads:
    """As many threads as the engine has, and a queue in which callers take turns."""

    def __init__(
        self, engine: SqlEngine, prepare: Callable[[], None], observe: Callable[[SlowJobStats], None] | None
    ) -> None:
        """`prepare` is called in a thread before each job that reads or changes; `observe` is called on the event loop."""
        self._engine = engine
        self._prepare = prepare
        self._observe = observe
        self._executor = ThreadPoolExecutor(engine.threads, thread_name_prefix="toolgate-storage")
        self._lock = Lock()
        self._queue: FairQueue[_Job] = FairQueue()
        self._busy = 0
        self._progress = time.monotonic()  # when a thread last began or ended something

    async def run(self, kind: JobKind, work: Callable[..., _T]) -> _T:
        """Return the result of the work; GatewayOverloaded if no thread is free for it in time.

        Work that a thread has begun is finished, even if the waiting task is cancelled. A change that does not end is
        reported as CommitUncertain.
        """
        job, engine = _Job(kind, work), self._engine
        with self._lock:
            start, idle = self._busy < engine.threads, job.queued - self._progress
            # The disk or the server hangs: further requests fail at once, and need not find that out one by one.
            if not start and idle > max(engine.queue_seconds, 2 * engine.lock_seconds):
                raise unavailable(f"it has not answered for {idle:.0f} seconds")
            # A thread ends only if it finds the queue empty under this lock: it sees this job, or counts as free by now.
            self._queue.put(job.caller, job)
            self._busy += start
        if start:
            self._progress = job.queued
            self._executor.submit(self._take_jobs)
        job.expiry = job.loop.call_later(engine.queue_seconds, self._expire, job)
        try:
            result: _T = await job.future
        except asyncio.CancelledError:
            with self._lock:
                self._queue.discard(job.caller, job)
            raise
        finally:
            job.expiry.cancel()
        return result

    def close(self) -> None:
        """Finish all jobs and end the threads."""
        self._executor.shutdown()

    def _expire(self, job: _Job) -> None:
        """End the wait for a job that no thread has begun in time, or for one that does not end."""
        now, engine = time.monotonic(), self._engine
        with self._lock:
            waits, idle = self._queue.discard(job.caller, job), now - self._progress
        hangs = f"it has not answered for {idle:.0f} seconds"
        if waits:
            why = hangs if idle > 2 * engine.lock_seconds else "too many requests wait for it"
            job.resolve(DatabaseWorkOutcome(error=unavailable(why)))
        elif job.kind is JobKind.MAINTENANCE:
            return  # a check of a large file takes as long as it takes
        elif now < (end := job.queued + END_SECONDS):
            job.expiry = job.loop.call_later(end - now, self._expire, job)
        elif job.kind is JobKind.READ:
            job.resolve(DatabaseWorkOutcome(error=unavailable(hangs)))
        elif not job.future.done():
            job.future.set_exception(CommitUncertain(why=hangs, outcome=lambda: job.outcome))

    def _take_jobs(self) -> None:
        """Run jobs until none waits."""
        held: _Job | None = None
        while True:
            with self._lock:
                if held is None and not self._queue.size:
                    self._busy -= 1
                    return
                job = held or self._queue.take()
            began = self._progress = time.monotonic()
            jobs, outcomes, held = self._run(job)
            ended = self._progress = time.monotonic()
            if ended - began > SLOW_SECONDS and self._observe is not None:
                names = tuple(dict.fromkeys([_name(one.work) for one in jobs]))[:_NAMES]
                commit_seconds = self._engine.commit_seconds if job.kind is JobKind.CHANGE else 0.0
                stats = SlowJobStats(names, ended - began, commit_seconds, self._queue.size)
                _call(job.loop, self._observe, stats)
            for done, outcome in zip(jobs, outcomes, strict=True):
                _call(done.loop, done.resolve, outcome)

    def _run(self, first: _Job) -> tuple[list[_Job], list[DatabaseWorkOutcome], _Job | None]:
        """Run a job, a change together with jobs that wait behind it; return also one that was taken and not run."""
        jobs, held = [first], list[_Job]()

        def works() -> Iterator[Callable[..., Any]]:
            yield first.work
            while True:
                with self._lock:
                    if not self._queue.size:
                        return
                    job = self._queue.take()
                if job.kind is JobKind.MAINTENANCE:
                    held.append(job)
                    return
                jobs.append(job)
                yield job.work

        try:
            match first.kind:
                case JobKind.MAINTENANCE:
                    outcomes = [DatabaseWorkOutcome(first.work())]
                case JobKind.READ:
                    self._prepare()
                    outcomes = [DatabaseWorkOutcome(self._engine.read(first.work))]
                case JobKind.CHANGE:
                    self._prepare()
                    outcomes = self._engine.change_together(works())
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            # Where one change at a time is made, what keeps one from beginning keeps all others.
            if first.kind is JobKind.CHANGE and isinstance(error, GatewayOverloaded) and self._engine.threads == 1:
                jobs += self._take_changes(time.monotonic() - self._engine.lock_seconds)
            outcomes = [DatabaseWorkOutcome(error=error) for _ in jobs]
        return jobs, outcomes, held[0] if held else None

    def _take_changes(self, queued_before: float) -> list[_Job]:
        """Take the changes that have waited as long as one waits for a lock, when another one waited for it in vain."""
        # The queue gives only its next job, so all are taken and those that may go on waiting are put back.
        with self._lock:
            waiting = [self._queue.take() for _ in range(self._queue.size)]
            late = [job for job in waiting if job.kind is JobKind.CHANGE and job.queued < queued_before]
            for job in waiting:
                if job not in late:
                    self._queue.put(job.caller, job)
        return late


def _name(work: Callable[..., Any]) -> str:
    """Return the name of the function or method that made this work, as `RunStore.claim`."""
    while isinstance(work, partial):
        work = work.func
    return work.__qualname__.partition(".<locals>")[0]


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], argument: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, and no task waits any more
        loop.call_soon_threadsafe(function, argument)
