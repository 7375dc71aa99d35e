"""Runs that outlive their process: what was asked, how it stands, and which node has it.

A run belongs to the node that claimed it last, and only as long as that node keeps saying so. Every claim has a number that
only grows: whoever holds an older one can write nothing any more, however late it wakes up. Every change of state is one
statement that names the states it starts from, and nothing leads out of an end. Who is not heard of is known without looking
at any clock that can be set (`storage/sightings.py`).

    queued ⇄ running ⇄ waiting        queued, running, waiting → completed | incomplete | failed | cancelled | parked

What was asked is JSON that only its writer reads.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from toolgate.scheduling import FairQueue
from toolgate.storage.database import Connection, Database
from toolgate.storage.engine import batches, placeholders
from toolgate.storage.responses import Write
from toolgate.storage.sightings import Sightings

Live: TypeAlias = Literal["queued", "running", "waiting"]
End: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled", "parked"]
State: TypeAlias = Live | End

ENDS: frozenset[str] = frozenset(get_args(End))

_INSERT = "INSERT INTO runs VALUES (?, ?, 'queued', ?, 0, ?, 0, 0, 0, ?, ?, ?)"
_CLAIM = """
UPDATE runs SET state = 'running', node = ?, token = token + 1, lease = ?, updated = ?,
    attempts = CASE WHEN steps < ? THEN 1 ELSE attempts + 1 END, steps = ?
WHERE id = ? AND state = 'queued'
RETURNING id, owner, state, node, token, lease, attempts, steps, cancel, asked, created, updated
"""
_HOLD = "UPDATE runs SET updated = ? WHERE id = ? AND token = ? AND state IN ('running', 'waiting')"
_TURN = "UPDATE runs SET state = ?, updated = ? WHERE id = ? AND token = ? AND state IN ('running', 'waiting')"
_END = """
UPDATE runs SET state = ?, node = '', lease = 0, updated = ?, asked = ?
WHERE id = ? AND token = ? AND state IN ('running', 'waiting')
"""
_BEAT = """
UPDATE runs SET lease = ? WHERE node = ? AND state IN ('running', 'waiting') AND id IN (%s) RETURNING id, token, cancel
"""
_FREE = """
UPDATE runs SET state = 'queued', node = ?, token = token + 1, lease = ?, updated = ?,
    attempts = CASE WHEN state = 'waiting' THEN attempts - 1 ELSE attempts END
WHERE id = ? AND token = ? AND lease = ? AND state IN ('queued', 'running', 'waiting')
"""
_RELEASE = """
UPDATE runs SET state = 'queued', node = '', token = token + 1, lease = 0, updated = ?, attempts = attempts - 1
WHERE id = ? AND token = ? AND state IN ('running', 'waiting')
"""
_LAPSING = """
SELECT id, node, token, lease, state, owner FROM runs
WHERE state IN ('queued', 'running', 'waiting') ORDER BY created
"""
_CANCEL = """
UPDATE runs SET cancel = 1, updated = ? WHERE id = ? AND state IN ('queued', 'running', 'waiting')
RETURNING id, owner, state, node, token, lease, attempts, steps, cancel, asked, created, updated
"""
_FIND = """
SELECT id, owner, state, node, token, lease, attempts, steps, cancel, asked, created, updated
FROM runs WHERE id = ?
"""
_COUNT = "SELECT count(*) FROM runs WHERE owner = ? AND state IN ('queued', 'running', 'waiting')"
_ALIVE = "SELECT id FROM runs WHERE state IN ('queued', 'running', 'waiting')"
_FORGET = "DELETE FROM runs WHERE updated < ? AND NOT (state IN ('queued', 'running', 'waiting'))"


class LeaseLost(Exception):
    """Another node has the run, or it has ended: whoever finds this stops, writes nothing and calls no tool."""


class TooMany(Exception):
    """The owner has as many runs as they may have."""


class StoredRun(Struct, frozen=True):
    """One run; `token` is the number of the claim, `attempts` counts claims since its last finished step.

    Neither a stop in good order nor one while it waited for a person counts as an attempt.

    `steps` are those that were finished when it was claimed last. While it is queued, `node` is the one that is about to
    begin it, if any is. `lease` says when somebody else should see to it by the clock of the node that has it; others only
    look whether it changes.
    """

    id: str
    owner: str
    state: State
    node: str
    token: int
    lease: float
    attempts: int
    steps: int
    cancel: bool
    asked: bytes
    created: float
    updated: float

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDS


class Held(Struct, frozen=True):
    """A run that this node has, and whether somebody wants it cancelled."""

    id: str
    token: int
    cancel: bool


class Freed(Struct, frozen=True):
    """A run that was taken from a node, and whether that had begun with it."""

    id: str
    begun: bool


class RunStore:
    """Keeps runs, as one node sees them."""

    def __init__(
        self,
        database: Database,
        node: str,
        *,
        lease_seconds: float = 6.0,
        is_gone: Callable[[str], bool] = lambda node: False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_gone` knows of nodes that certainly live no more, so that nobody has to wait for their leases.

        `clock` is the one on the wall; leases of others are watched by the `steady` one.
        """
        self.node = node
        self.lease_seconds = lease_seconds
        self._database = database
        self._is_gone = is_gone
        self._clock = clock
        self._sightings = Sightings(steady, most=None)

    def opening(self, id: str, owner: str, asked: bytes, most: int | None = None) -> Write:
        """Queues a run that this node is about to begin; TooMany if `most` of this owner, on any node, have not ended."""
        now = self._clock()
        row = (id, owner, self.node, now + self.lease_seconds, asked, now, now)

        def write(db: Connection) -> None:
            if most is not None and db.execute(_COUNT, (owner,)).fetchone()[0] >= most:
                raise TooMany
            db.execute(_INSERT, row)

        return write

    async def load(self, id: str) -> StoredRun | None:
        """The run of this id."""
        rows = await self._database.do(lambda db: db.execute(_FIND, (id,)).fetchall())
        return _run(rows[0]) if rows else None

    async def over(self, ids: Sequence[str]) -> list[str]:
        """Those of the runs that have ended or are not known."""
        rows = await self._database.do(lambda db: db.execute(_ALIVE).fetchall())
        return sorted(set(ids) - {id for (id,) in rows})

    async def claim(self, id: str, steps: int = 0) -> StoredRun | None:
        """Take a queued run, of which so many steps are finished; None if it is another's or has ended."""
        now = self._clock()
        values = (self.node, now + self.lease_seconds, now, steps, steps, id)
        rows = await self._database.change(lambda db: db.execute(_CLAIM, values).fetchall())
        return _run(rows[0]) if rows else None

    def holding(self, id: str, token: int) -> Write:
        """Makes sure, together with other changes, that the run is still held by this claim; raises LeaseLost."""
        return lambda db: _or_lost(db, _HOLD, (self._clock(), id, token))

    def ending(self, id: str, token: int, state: End) -> Write:
        """Ends the run, together with other changes; raises LeaseLost if it is not this claim's to end.

        What was asked is not needed any more and is not kept.
        """
        return lambda db: _or_lost(db, _END, (state, self._clock(), b"", id, token))

    async def check(self, id: str, token: int) -> None:
        """Raise LeaseLost unless the run is still held by this claim."""
        await self._database.change(self.holding(id, token))

    async def turn(self, id: str, token: int, state: Literal["running", "waiting"]) -> None:
        """Say whether the run waits for a person."""
        await self._database.change(lambda db: _or_lost(db, _TURN, (state, self._clock(), id, token)))

    async def beat(self, ids: Sequence[str]) -> list[Held]:
        """Keep these runs for another while; those of them that this node still has."""
        until = self._clock() + self.lease_seconds

        def write(db: Connection) -> list[Any]:
            return [
                row
                for some in batches(ids)
                for row in db.execute(_BEAT % placeholders(some), (until, self.node, *some)).fetchall()
            ]

        rows = await self._database.change(write)
        return [Held(id, token, bool(cancel)) for id, token, cancel in rows]

    async def free(self) -> list[Freed]:
        """Take runs from nodes that are gone and from nobody, so that they can be claimed; which, owner by owner in turn."""
        found = await self._database.do(lambda db: db.execute(_LAPSING).fetchall())
        gone = {"", *(node for node in {row[1] for row in found if row[1]} if self._is_gone(node))}
        self._sightings.keep({row[0] for row in found})
        queue: FairQueue[tuple[Freed, int, float]] = FairQueue()
        for id, node, token, lease, state, owner in found:
            if self._sightings.age(id, (token, lease)) >= self.lease_seconds or node in gone:
                queue.put(owner, (Freed(id, state != "queued"), token, lease))
        if not queue:
            return []
        lapsed = [queue.take() for _ in range(len(queue))]
        now = self._clock()

        def take(db: Connection) -> list[Freed]:
            values = [
                (one, (self.node, now + self.lease_seconds, now, one.id, token, lease)) for one, token, lease in lapsed
            ]
            return [one for one, row in values if db.execute(_FREE, row).rowcount]

        return await self._database.change(take)

    async def release(self, id: str, token: int) -> bool:
        """Give a run back, for another node to go on at once; false if it was not this claim's any more."""
        values = (self._clock(), id, token)
        return await self._database.change(lambda db: db.execute(_RELEASE, values).rowcount == 1)

    async def cancel(self, id: str) -> StoredRun | None:
        """Have whoever has the run cancel it; None if it has ended."""
        rows = await self._database.change(lambda db: db.execute(_CANCEL, (self._clock(), id)).fetchall())
        return _run(rows[0]) if rows else None

    def forgetting(self, id: str) -> Write:
        """Forgets the run; whoever has it finds that it has lost it."""
        return lambda db: db.execute("DELETE FROM runs WHERE id = ?", (id,))

    async def forget_before(self, seconds: float) -> None:
        """Forget the runs that ended so many seconds ago."""
        await self._database.change(lambda db: db.execute(_FORGET, (self._clock() - seconds,)))


def _or_lost(db: Connection, statement: str, values: Sequence[Any]) -> None:
    if db.execute(statement, values).rowcount != 1:
        raise LeaseLost


def _run(row: Sequence[Any]) -> StoredRun:
    id, owner, state, node, token, lease, attempts, steps, cancel, asked, created, updated = row
    return StoredRun(
        id, owner, state, node, token, lease, attempts, steps, bool(cancel), bytes(asked), created, updated
    )
