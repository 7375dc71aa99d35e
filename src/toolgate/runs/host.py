"""The runs of one node: it takes them, says from time to time that it still has them, and sees to those that others left.

A node that is stopped gives its runs back, and one that is killed loses them with its leases; either way another node, or
the next start, goes on. A run that has brought down its node again and again is given up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.runs.execution import Execution, NoSteps, StepsLost
from toolgate.runs.steps import Steps
from toolgate.storage.runs import Freed, LeaseLost, RunStore, StoredRun

Stop: TypeAlias = Literal["cancelled", "parked", "lost"]

_CANCEL_PATIENCE = 0.1
_TIDY_SECONDS = 3600.0


class Terms(Struct, frozen=True):
    """How often a node looks after its runs and those of others, and after how many crashes a run is given up."""

    look_seconds: float = 2.0
    crashes: int = 3
    keep_seconds: float = 86_400.0


class Attempt:
    """One go at a run: the claim under which it is made, and the steps that were finished before."""

    def __init__(self, run: StoredRun, steps: Steps) -> None:
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
        """End it for another node to go on."""
        self.released = True
        self._interrupt()

    def lose(self) -> None:
        """End it, for another node has it by now."""
        self._interrupt()

    def _interrupt(self) -> None:
        self.interrupted = True
        if self._task is not None:
            self._task.cancel()


class Performer(Protocol):
    """Knows what a run is about."""

    async def perform(self, attempt: Attempt) -> None:
        """Carry the run out and write its end; a cancelled attempt ends as such, any other interruption is raised."""

    async def stop(self, attempt: Attempt, how: Stop) -> None:
        """Write the end of a run without carrying it out."""


class Runs:
    """The runs that this node carries out."""

    def __init__(self, store: RunStore, execution: Execution, terms: Terms, complain: Callable[[str], None]) -> None:
        self.store = store
        self._execution = execution
        self._terms = terms
        self._complain = complain
        self._performer: Performer | None = None
        self._attempts: dict[str, Attempt] = {}
        self._over: list[str] = []
        self._opening = asyncio.Lock()
        self._opened = self._closed = False
        self._watch: asyncio.Task[None] | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self._expected: set[str] = set()  # begun here, but not claimed yet
        self._changed = asyncio.Event()
        self._problem = ""

    def open(self, performer: Performer) -> None:
        """Look after runs from now on, first after those that an earlier process left."""
        self._performer = performer
        self._watch = asyncio.get_running_loop().create_task(self._look_after())

    def has(self, id: str) -> bool:
        """Whether this node carries out the run."""
        return id in self._attempts

    def start(self, id: str) -> None:
        """Have a queued run begun here, soon; should that fail, it is found and begun again."""
        self._expected.add(id)
        task = asyncio.get_running_loop().create_task(self._begin(id))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def cancel(self, id: str) -> None:
        """Have a run cancelled on whichever node has it; returns when it has ended, or when that node does not answer."""
        run = await self.store.cancel(id)
        attempt = self._attempts.get(id)
        if attempt is not None:
            attempt.cancel()
            await attempt.over.wait()
        elif run is not None and (claimed := await self.store.claim(id, run.steps)) is not None:
            await self._stop(Attempt(claimed, NoSteps()), "cancelled")
        elif run is not None:
            await self._ended_elsewhere(id)

    def review(self, may: Callable[[str], bool]) -> int:
        """Cancel what runs here for owners who may not have it any more; how many runs that were."""
        ended = [one for one in self._attempts.values() if not one.cancelled and not may(one.run.owner)]
        for attempt in ended:
            attempt.cancel()
        return len(ended)

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for what runs, then give it back; nothing new is begun."""
        await self._quiet(seconds)
        self._closed = True
        for task in (*self._beginning, *([self._watch] if self._watch else [])):
            task.cancel()
        for attempt in tuple(self._attempts.values()):
            attempt.release()
            await attempt.over.wait()
        if self._opened:
            await self._execution.aclose()

    async def _quiet(self, seconds: float) -> None:
        """Return when nothing runs and nothing is about to, or when the time is over."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while (self._expected or self._attempts) and (left := deadline - clock()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def _begin(self, id: str) -> None:
        try:
            await self._open_execution()
            await self._execution.begin(id)
        except Exception as error:  # noqa: BLE001  # nobody waits for it: the run stays queued and is begun again
            self._expected.discard(id)
            self._changed.set()
            self._complain(f"The run {id} could not be begun: {error}")

    async def _open_execution(self) -> None:
        async with self._opening:
            if not self._opened:
                self._opened = True
                try:
                    await self._execution.open(self._work)
                except BaseException:
                    self._opened = False
                    raise
                # A process that ends right after a run has ended leaves its steps behind.
                self._over += await self.store.over(await self._execution.known())

    async def _work(self, id: str, steps: Steps) -> None:
        """One attempt at a run; returning ends it, and raising leaves it to another attempt."""
        known = await self.store.load(id)
        run = None if self._closed else await self.store.claim(id, len(steps.recorded))
        self._expected.discard(id)
        if run is None:
            known = await self.store.load(id)
            if known is not None and not known.is_over:
                raise LeaseLost
            return
        attempt = self._attempts[id] = Attempt(run, steps)
        try:
            await self._attempted(attempt, known.steps if known is not None else 0)
        except asyncio.CancelledError:
            if attempt.released:
                await self.store.release(id, run.token)
            known = await self.store.load(id)
            if known is not None and not known.is_over:
                if not attempt.cancelled:
                    raise
                await self._stop(attempt, "cancelled")  # before it was begun in earnest
        finally:
            del self._attempts[id]
            attempt.over.set()
            self._changed.set()
        self._over.append(id)

    async def _attempted(self, attempt: Attempt, steps: int) -> None:
        """Carry it out, unless there is a reason not to; so many `steps` were finished when it was claimed before."""
        assert self._performer is not None  # nothing is claimed before
        if attempt.run.cancel:
            await self._stop(attempt, "cancelled")
        elif len(attempt.steps.recorded) < steps:
            await self._stop(attempt, "lost")
        elif attempt.run.attempts > self._terms.crashes:
            await self._stop(attempt, "parked")
        else:
            await self._performer.perform(attempt)

    async def _stop(self, attempt: Attempt, how: Stop) -> None:
        assert self._performer is not None
        await self._performer.stop(attempt, how)

    async def _ended_elsewhere(self, id: str) -> None:
        for _ in range(round((self.store.lease_seconds + 3 * self._terms.look_seconds) / _CANCEL_PATIENCE)):
            run = await self.store.load(id)
            if run is None or run.is_over:
                return
            await asyncio.sleep(_CANCEL_PATIENCE)

    async def _look_after(self) -> None:
        clock = asyncio.get_running_loop().time
        tidied = -_TIDY_SECONDS
        while True:
            if clock() - tidied >= _TIDY_SECONDS:
                tidied = clock()
                await self._tried(self.store.forget_before(self._terms.keep_seconds))
            await self._tried(self._look())
            await asyncio.sleep(self._terms.look_seconds)

    async def _look(self) -> None:
        """Keep what this node has, take note of what it has lost, and see to what nobody has."""
        if self._attempts:
            await self._beat()
        for freed in await self.store.free():
            await self._open_execution()
            await self._resume(freed)
        if self._over:
            over, self._over = self._over, []
            await self._execution.forget(over)

    async def _resume(self, freed: Freed) -> None:
        try:
            await self._execution.resume(freed.id, freed.begun)
        except StepsLost:
            if (claimed := await self.store.claim(freed.id)) is not None:
                await self._stop(Attempt(claimed, NoSteps()), "lost")

    async def _beat(self) -> None:
        attempts = dict(self._attempts)
        held = {one.id: one for one in await self.store.beat(tuple(attempts))}
        for id, attempt in attempts.items():
            if id not in held or held[id].token != attempt.run.token:
                attempt.lose()
            elif held[id].cancel:
                attempt.cancel()

    async def _tried(self, looking: Awaitable[None]) -> None:
        """What fails is tried again with the next look; the log hears of it once."""
        problem = ""
        try:
            await looking
        except ToolgateError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001  # the database of the engine, whatever it raises: the watch goes on
            problem = f"{type(error).__name__}: {error}"
        if problem and problem != self._problem:
            self._complain(problem)
        self._problem = problem
