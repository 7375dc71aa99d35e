"""Store runs that survive their process: the request, the state, and the node that has a lease on it.

A run belongs to the node that claimed it last, as long as that node renews its lease. Every claim has a token that only
grows: a node with an older one can write nothing any more, however late it wakes up. Every change of state is one statement
that names the states it starts from, and nothing leads out of an end. That a lease was not renewed is known without
comparing clocks that can be set (`observed_leases.py`).

    queued ⇄ running ⇄ waiting        queued, running, waiting → completed | incomplete | failed | cancelled | parked

The request is JSON that this store does not read. The record of the run, by which people see it (`run_records.py`), gets
every state in the same transaction.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from toolgate.scheduling import FairQueue
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ObservedLeases
from toolgate.storage.responses import Write
from toolgate.storage.sql_engine import batches, placeholders

Live: TypeAlias = Literal["queued", "running", "waiting"]
End: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled", "parked"]
State: TypeAlias = Live | End

ENDS: frozenset[str] = frozenset(get_args(End))

# In the order of the columns: id, owner, state, node, token, lease, attempts, steps, cancel, asked (the request), created
# and updated.
_INSERT = "INSERT INTO runs VALUES (?, ?, 'queued', ?, 0, ?, 0, 0, 0, ?, ?, ?)"
# A run that has finished a step since it was claimed last starts to count its attempts anew, because it makes progress.
_CLAIM = """
UPDATE runs SET state = 'running', node = ?, token = token + 1, lease = ?, updated = ?,
    attempts = CASE WHEN steps < ? THEN 1 ELSE attempts + 1 END, steps = ?
WHERE id = ? AND state = 'queued'
RETURNING id, owner, state, node, token, lease, attempts, steps, cancel, asked, created, updated
"""
_CHECK = "UPDATE runs SET updated = ? WHERE id = ? AND token = ? AND state IN ('running', 'waiting')"
_SET_STATE = "UPDATE runs SET state = ?, updated = ? WHERE id = ? AND token = ? AND state IN ('running', 'waiting')"
_END = """
UPDATE runs SET state = ?, node = '', lease = 0, updated = ?, asked = ?
WHERE id = ? AND token = ? AND state IN ('running', 'waiting')
"""
_RENEW = """
UPDATE runs SET lease = ? WHERE node = ? AND state IN ('running', 'waiting') AND id IN (%s) RETURNING id, token, cancel
"""
# With the token and the lease that were read: its node may have renewed it, or another node may have taken it since.
# A run that waited for an approval did nothing that may have killed its node: that attempt does not count.
_TAKE = """
UPDATE runs SET state = 'queued', node = ?, token = token + 1, lease = ?, updated = ?,
    attempts = CASE WHEN state = 'waiting' THEN attempts - 1 ELSE attempts END
WHERE id = ? AND token = ? AND lease = ? AND state IN ('queued', 'running', 'waiting')
"""
_RELEASE = """
UPDATE runs SET state = 'queued', node = '', token = token + 1, lease = 0, updated = ?, attempts = attempts - 1
WHERE id = ? AND token = ? AND state IN ('running', 'waiting')
"""
_LIVE = """
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
_FOLLOW = "UPDATE run_records SET state = ? WHERE id = ?"
_FOLLOW_CLAIM = "UPDATE run_records SET state = 'running', started = coalesce(started, ?) WHERE id = ?"
_FOLLOW_END = "UPDATE run_records SET state = ?, ended = ? WHERE id = ?"
_COUNT = "SELECT count(*) FROM runs WHERE owner = ? AND state IN ('queued', 'running', 'waiting')"
_ALIVE = "SELECT id FROM runs WHERE state IN ('queued', 'running', 'waiting')"
_DELETE_ENDED = "DELETE FROM runs WHERE updated < ? AND NOT (state IN ('queued', 'running', 'waiting'))"


class RunLeaseLost(Exception):
    """Another node has the run, or it has ended: the attempt stops, writes nothing and calls no tool."""


class TooManyRuns(Exception):
    """The owner has as many live runs as it may have."""


class StoredRun(Struct, frozen=True):
    """One run; `token` is the number of the claim, `attempts` counts claims since its last finished step.

    Neither a graceful stop nor one while it waited for an approval counts as an attempt.

    `steps` are those that were finished when it was claimed last. While it is queued, `node` is the one that is about to
    start it, if any is. `lease` is the time of the node's own clock at which its lease ends; other nodes only watch whether
    it changes.
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
    request: bytes
    created: float
    updated: float

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state in ENDS


class RunLease(Struct, frozen=True):
    """A run that this node has, and whether it is to be cancelled."""

    id: str
    token: int
    cancel: bool


class AbandonedRun(Struct, frozen=True):
    """A run whose node has left it, and whether that had started it."""

    id: str
    started: bool


class RunStore:
    """Stores runs, as one node sees them."""

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
        """`is_gone` knows nodes that have certainly ended, so that their leases need not run out.

        `clock` is the wall clock; leases of other nodes are watched by the `steady` one.
        """
        self.node = node
        self.lease_seconds = lease_seconds
        self._database = database
        self._is_gone = is_gone
        self._clock = clock
        self._watch = ObservedLeases(steady, most=None)

    def opening(self, id: str, owner: str, request: bytes, most: int | None = None) -> Write:
        """Return the write that queues a run for this node; TooManyRuns if its owner has `most` live runs already."""
        now = self._clock()
        row = (id, owner, self.node, now + self.lease_seconds, request, now, now)

        def write(db: SqlConnection) -> None:
            if most is not None and db.execute(_COUNT, (owner,)).fetchone()[0] >= most:
                raise TooManyRuns
            db.execute(_INSERT, row)

        return write

    async def load(self, id: str) -> StoredRun | None:
        """Return the run of this id."""
        rows = await self._database.read(lambda db: db.execute(_FIND, (id,)).fetchall())
        return _run(rows[0]) if rows else None

    async def not_live(self, ids: Sequence[str]) -> list[str]:
        """Return those of these ids whose runs have ended or are not stored."""
        rows = await self._database.read(lambda db: db.execute(_ALIVE).fetchall())
        return sorted(set(ids) - {id for (id,) in rows})

    async def claim(self, id: str, steps: int = 0) -> StoredRun | None:
        """Claim a queued run, of which so many steps are finished; None if another node has it or it has ended."""
        now = self._clock()
        values = (self.node, now + self.lease_seconds, now, steps, steps, id)

        def write(db: SqlConnection) -> list[Any]:
            claimed = db.execute(_CLAIM, values).fetchall()
            if claimed:
                db.execute(_FOLLOW_CLAIM, (now, id))
            return claimed

        rows = await self._database.change(write)
        return _run(rows[0]) if rows else None

    def checking(self, id: str, token: int) -> Write:
        """Return the write that checks, together with others, that this claim is still valid; RunLeaseLost if not."""
        return lambda db: _execute_or_lost(db, _CHECK, (self._clock(), id, token))

    def ending(self, id: str, token: int, state: End) -> Write:
        """Return the write that ends the run and deletes its request; RunLeaseLost if this claim is not valid any more."""

        def write(db: SqlConnection) -> None:
            now = self._clock()
            _execute_or_lost(db, _END, (state, now, b"", id, token))
            db.execute(_FOLLOW_END, (state, now, id))

        return write

    async def check(self, id: str, token: int) -> None:
        """Raise RunLeaseLost if this claim is not valid any more."""
        await self._database.change(self.checking(id, token))

    async def set_waiting(self, id: str, token: int, waiting: bool) -> None:
        """Store whether the run waits for an approval."""
        state = "waiting" if waiting else "running"

        def write(db: SqlConnection) -> None:
            _execute_or_lost(db, _SET_STATE, (state, self._clock(), id, token))
            db.execute(_FOLLOW, (state, id))

        await self._database.change(write)

    async def has_ended(self, run: StoredRun) -> bool:
        """Return whether the run has ended under this very claim."""
        known = await self.load(run.id)
        return known is not None and known.is_over and known.token == run.token

    async def renew(self, ids: Sequence[str]) -> list[RunLease]:
        """Renew the leases of these runs, and return those that this node still has."""
        until = self._clock() + self.lease_seconds

        def write(db: SqlConnection) -> list[Any]:
            return [
                row
                for some in batches(ids)
                for row in db.execute(_RENEW % placeholders(some), (until, self.node, *some)).fetchall()
            ]

        rows = await self._database.change(write)
        return [RunLease(id, token, bool(cancel)) for id, token, cancel in rows]

    async def take_abandoned(self) -> list[AbandonedRun]:
        """Queue runs that their nodes have left for this node, and return them, owner by owner in turn."""
        found = await self._database.read(lambda db: db.execute(_LIVE).fetchall())
        # A queued run without a node was released by one that shuts down, and is free at once.
        gone = {"", *(node for node in {row[1] for row in found if row[1]} if self._is_gone(node))}
        self._watch.keep({row[0] for row in found})
        queue: FairQueue[tuple[AbandonedRun, int, float]] = FairQueue()
        for id, node, token, lease, state, owner in found:
            if self._watch.age(id, (token, lease)) >= self.lease_seconds or node in gone:
                queue.put(owner, (AbandonedRun(id, state != "queued"), token, lease))
        if not queue:  # the usual case, polled by every node: it must not cost a write
            return []
        abandoned = [queue.take() for _ in range(len(queue))]
        now = self._clock()

        def take(db: SqlConnection) -> list[AbandonedRun]:
            values = [
                (one, (self.node, now + self.lease_seconds, now, one.id, token, lease))
                for one, token, lease in abandoned
            ]
            taken = [one for one, row in values if db.execute(_TAKE, row).rowcount]
            for one in taken:
                db.execute(_FOLLOW, ("queued", one.id))
            return taken

        return await self._database.change(take)

    async def release(self, id: str, token: int) -> bool:
        """Queue a run for any node to resume at once; false if this claim was not valid any more."""
        values = (self._clock(), id, token)

        def write(db: SqlConnection) -> bool:
            released = db.execute(_RELEASE, values).rowcount == 1
            if released:
                db.execute(_FOLLOW, ("queued", id))
            return released

        return await self._database.change(write)

    async def cancel(self, id: str) -> StoredRun | None:
        """Mark a run to be cancelled by the node that has it; None if it has ended."""
        rows = await self._database.change(lambda db: db.execute(_CANCEL, (self._clock(), id)).fetchall())
        return _run(rows[0]) if rows else None

    def deleting(self, id: str) -> Write:
        """Return the write that deletes the run; its node finds its lease lost."""
        return lambda db: db.execute("DELETE FROM runs WHERE id = ?", (id,))

    async def delete_ended_before(self, seconds: float) -> None:
        """Delete runs that ended so many seconds ago."""
        await self._database.change(lambda db: db.execute(_DELETE_ENDED, (self._clock() - seconds,)))


def _execute_or_lost(db: SqlConnection, statement: str, values: Sequence[Any]) -> None:
    if db.execute(statement, values).rowcount != 1:
        raise RunLeaseLost


def _run(row: Sequence[Any]) -> StoredRun:
    id, owner, state, node, token, lease, attempts, steps, cancel, request, created, updated = row
    return StoredRun(
        id, owner, state, node, token, lease, attempts, steps, bool(cancel), bytes(request), created, updated
    )
