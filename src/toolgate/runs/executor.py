"""Execute runs: the port to a durable-execution engine, and an executor for storage that is not durable."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from toolgate.runs.step_records import DurableStepLog

# Does the work of the run with this id and returns when it has ended; an exception leaves the run to another attempt.
Work: TypeAlias = Callable[[str, DurableStepLog], Awaitable[None]]


class StepsLost(Exception):
    """Steps that were written are gone, so that it is not known what the run has done."""


class DurableRunExecutor(Protocol):
    """Executes runs by their ids and stores their steps."""

    async def open(self, work: Work) -> None:
        """Get ready to execute runs; expensive, so that it happens when there is one."""

    async def begin(self, id: str) -> None:
        """Execute a run that was never started."""

    async def resume(self, id: str, begun: bool = False) -> None:
        """Execute a run that its node has left, on any node, and refuse the steps of an earlier attempt.

        Raises StepsLost if it was `begun`, but nothing of it is stored.
        """

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete the steps of these runs."""

    async def aclose(self) -> None:
        """Stop executing; runs that have not ended stay as they are."""


class RunExecutor(DurableRunExecutor, Protocol):
    """Executes runs, and knows of which there are steps even before it is opened."""

    async def known(self) -> Sequence[str]:
        """Return the ids of all runs that have stored steps, ended or not."""


class LazyRunExecutor:
    """Makes its executor, which takes a while, when there is a run to execute (`RunExecutor`)."""

    def __init__(self, make: Callable[[], DurableRunExecutor], known: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """`make` is called in a thread; `known` reads the ids of runs with steps without the executor."""
        self._make = make
        self._made: DurableRunExecutor | None = None
        self._known = known

    async def open(self, work: Work) -> None:
        self._made = await asyncio.to_thread(self._make)  # importing DBOS takes most of a second
        await self._made.open(work)

    async def begin(self, id: str) -> None:
        await self._executor.begin(id)

    async def resume(self, id: str, begun: bool = False) -> None:
        await self._executor.resume(id, begun)

    async def forget(self, ids: Sequence[str]) -> None:
        await self._executor.forget(ids)

    async def known(self) -> Sequence[str]:
        return await self._known()

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    @property
    def _executor(self) -> DurableRunExecutor:
        assert self._made is not None  # opened first
        return self._made


class DiscardingStepLog:
    """Takes the place of a `DurableStepLog` and stores nothing."""

    recorded: Sequence[str] = ()

    async def keep(self, name: str, value: str) -> None:
        """Store nothing: the steps are lost with the process, as all else in its memory."""


class InProcessExecutor:
    """Executes runs as tasks, which are lost with the process (`RunExecutor`)."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, work: Work) -> None:
        self._work = work

    async def begin(self, id: str) -> None:
        async def execute() -> None:
            assert self._work is not None  # opened first
            await self._work(id, DiscardingStepLog())

        task = asyncio.get_running_loop().create_task(execute())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def resume(self, id: str, begun: bool = False) -> None:
        """Start the run from its beginning."""
        await self.begin(id)

    async def known(self) -> Sequence[str]:
        return ()

    async def forget(self, ids: Sequence[str]) -> None:
        pass

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
