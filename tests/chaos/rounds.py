"""Rounds of crashes over one storage: clients at work, a kill at one point, a start, and everything looked through."""

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import count

from msgspec import Struct

from tests.chaos.model import COST, Planner
from tests.chaos.oracle import Oracle
from tests.chaos.server import Server
from tests.chaos.sessions import KINDS, Session
from tests.chaos.world import Violation, World
from toolgate.limits.local_budgets import EVER
from toolgate.storage.database import Database
from toolgate.storage.spending import SpendingStore

RECOVERY_SECONDS = 10.0
"""So long a recovery may take; more than that is slow."""
PATIENCE = 60.0
"""After which whoever is not done is stuck."""
MOST = {
    "accepted": 8,
    "response-kept": 6,
    "items-kept": 3,
    "streaming": 30,
    "frames-kept": 4,
    "calls-kept": 6,
    "round-kept": 2,
    "intended": 3,
    "step-intended": 3,
    "done": 8,
    "result-kept": 8,
    "step-ended": 3,
    "turn-kept": 4,
    "answer-kept": 4,
    "writing": 40,
    "written": 40,
}
"""About how often a point is passed in a round, where that is more than once."""


class Round(Struct, frozen=True):
    """What became of one crash."""

    database: str
    point: str
    killed: bool
    """Whether the point was reached; otherwise the server was killed when all was done."""
    start_seconds: float
    recovery_seconds: float
    violations: tuple[Violation, ...]


class Ordeal:
    """One storage, and a server over it that is killed again and again."""

    def __init__(self, database: str, server: Server, planner: Planner, seed: int) -> None:
        self.database = database
        self.name = database[:2]
        """With which all that clients make here begins."""
        self._planner = planner
        self.server = server
        self.world = World(server)
        self.oracle = Oracle(server.place)
        self._rng = random.Random(f"{seed} {database}")  # it is to be repeatable
        self._numbers = count(1)
        self._done: list[Session] = []

    async def begin(self, **environment: str) -> None:
        """Start the server for the first time."""
        await self.server.start(**environment)
        self.world.up.set()

    async def work(self) -> list[Violation]:
        """Have all kinds of clients at work, and nobody killed."""
        sessions = self._new_sessions()
        working = {asyncio.create_task(session.run()): session for session in sessions}
        return [*await self._settled(working, time.monotonic()), *await self._verified(sessions)]

    async def round(self, point: str) -> Round:
        """Kill it once at this point, while all kinds of clients are at work."""
        self.server.arm(f"{point}:{self._rng.randint(1, MOST.get(point, 1))}")
        sessions = self._new_sessions()
        working = {asyncio.create_task(session.run()): session for session in sessions}
        killed = await self._killed(set(working))
        began = time.monotonic()
        start = await self.server.start()
        self.world.up.set()
        wrong = await self._settled(working, began)
        recovered = time.monotonic() - began
        if recovered > RECOVERY_SECONDS:
            wrong.append(Violation("slow", f"all was well again after {recovered:.1f} s, {start:.1f} s of it to start"))
        wrong += await self._verified(sessions)
        return Round(self.database, point, killed, start, recovered, tuple(wrong))

    async def end(self) -> list[Violation]:
        """Look through all that was ever acknowledged, once more."""
        wrong = await self._verified(self._done)
        wrong += [Violation("twice", call) for call in self.oracle.twice()]
        await self.server.stop()
        await self.world.client.aclose()
        return [*wrong, *await self._overspent()]

    async def _overspent(self) -> list[Violation]:
        """Whether more was put down to the key than the model has answered: what a crash interrupts may be lost to the
        books, but nothing may be counted twice."""
        database = Database(self.server.storage)
        sums = await SpendingStore(database).sums([EVER])
        await database.aclose()
        spent, answers = sum(sums.values()), self._planner.answers(self.name)
        if not 0 < spent <= answers * COST * 1.000001:
            return [Violation("doubled", f"{spent} was spent on {answers} answers of {COST} each")]
        return []

    async def _killed(self, working: "set[asyncio.Task[None]]") -> bool:
        """Wait for the death of the server, and see to it when all is done; whether it had died by itself."""
        died = asyncio.create_task(self.server.died())
        done = asyncio.ensure_future(asyncio.wait(working))
        await asyncio.wait({died, done}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        killed = died.done()
        self.world.up.clear()
        await self.server.kill()
        await asyncio.wait({died})
        done.cancel()
        return killed

    async def _settled(self, working: "dict[asyncio.Task[None], Session]", began: float) -> list[Violation]:
        """Wait until all clients have what they wanted, but not for ever."""
        await asyncio.wait(working, timeout=max(0.1, began + PATIENCE - time.monotonic()))
        wrong: list[Violation] = []
        for task, session in working.items():
            if not task.done():
                task.cancel()
                wrong.append(Violation("stuck", f"{session.id} was not done after {PATIENCE:g} s: {session}"))
            elif (error := task.exception()) is not None:
                wrong.append(Violation("wrong", f"{session.id}: {type(error).__name__}: {error}"))
            else:
                self._done.append(session)
        await asyncio.wait(working)
        return wrong

    def _new_sessions(self) -> list[Session]:
        number = next(self._numbers)
        return [kind(self.world, self.oracle, f"{self.name}{number}{kind.__name__}") for kind in KINDS]

    async def _verified(self, sessions: Sequence[Session]) -> list[Violation]:
        done = [session for session in sessions if session in self._done]
        found = await asyncio.gather(*[session.verify() for session in done])
        return [violation for one in found for violation in one]
