"""What carries runs out: the port to a durable-execution engine, and the poor man's one for storage that is not durable."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from toolgate.runs.steps import Steps

Work: TypeAlias = Callable[[str, Steps], Awaitable[None]]
"""Carries out the run of this id; returns when it has ended. Whatever it raises leaves the run to be begun again."""


class StepsLost(Exception):
    """Steps that were written are not there: nobody knows any more what the run has done."""


class Execution(Protocol):
    """Carries out runs, each by its id."""

    async def open(self, work: Work) -> None:
        """Be ready to carry out runs; expensive, so that it happens when there is one."""

    async def begin(self, id: str) -> None:
        """Have a run carried out that was never begun."""

    async def resume(self, id: str, begun: bool = False) -> None:
        """Have a run carried out, by any node, that another node has left; whoever still works at it is shut out.

        StepsLost if it was `begun`, but nothing is known of that.
        """

    async def known(self) -> Sequence[str]:
        """The runs of which there are steps, ended or not."""

    async def forget(self, ids: Sequence[str]) -> None:
        """Drop the steps of runs that have ended."""

    async def aclose(self) -> None:
        """Stop carrying out anything; runs that have not ended are left as they are."""


class Deferred:
    """An execution that is made, which may take its time, when there is something to carry out."""

    def __init__(self, make: Callable[[], Execution]) -> None:
        """`make` is called in a thread."""
        self._make = make
        self._made: Execution | None = None

    async def open(self, work: Work) -> None:
        """Make it and open it."""
        self._made = await asyncio.to_thread(self._make)
        await self._made.open(work)

    async def begin(self, id: str) -> None:
        """Have a run carried out that was never begun."""
        await self._there().begin(id)

    async def resume(self, id: str, begun: bool = False) -> None:
        """Have a run carried out that another node has left."""
        await self._there().resume(id, begun)

    async def known(self) -> Sequence[str]:
        """The runs of which there are steps."""
        return await self._there().known()

    async def forget(self, ids: Sequence[str]) -> None:
        """Drop the steps of runs that have ended."""
        await self._there().forget(ids)

    async def aclose(self) -> None:
        """Stop, if it was ever begun."""
        if self._made is not None:
            await self._made.aclose()

    def _there(self) -> Execution:
        assert self._made is not None  # opened first
        return self._made


class NoSteps:
    """Steps that nobody writes down."""

    recorded: Sequence[str] = ()

    async def keep(self, name: str, value: str) -> None:
        """The process is all there is."""


class InProcess:
    """Carries out runs as tasks: what they did is lost with the process, as all else in its memory."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, work: Work) -> None:
        """Remember how runs are carried out."""
        self._work = work

    async def begin(self, id: str) -> None:
        """Begin a task."""
        task = asyncio.get_running_loop().create_task(self._carry_out(id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def resume(self, id: str, begun: bool = False) -> None:
        """Begin it again from its beginning."""
        await self.begin(id)

    async def known(self) -> Sequence[str]:
        """None."""
        return ()

    async def forget(self, ids: Sequence[str]) -> None:
        """Nothing was kept."""

    async def aclose(self) -> None:
        """Cancel what runs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, id: str) -> None:
        assert self._work is not None  # opened first
        await self._work(id, NoSteps())
