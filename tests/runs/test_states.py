"""The states of runs, driven at random by several nodes at once: each run ends once, and only by who has it."""

import os
import random
import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from toolgate.storage.database import Database
from toolgate.storage.migrations import migrations
from toolgate.storage.runs import ENDS, End, RunLeaseLost, RunStore, StoredRun

T = TypeVar("T")

NODES = 3
LEASE = 6.0
LEADS_TO = {
    "queued": {"queued", "running"},
    "running": {"running", "waiting", "queued", *ENDS},
    "waiting": {"running", "waiting", "queued", *ENDS},
    **{end: {end} for end in ENDS},
}


class Instant:
    """A database in memory that does everything at once, in the caller's thread."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        for step in migrations():
            self.db.executescript(step.text)

    async def read(self, work: Callable[[Any], T]) -> T:
        return work(self.db)

    async def change(self, work: Callable[[Any], T]) -> T:
        with self.db:
            self.db.execute("BEGIN IMMEDIATE")
            return work(self.db)


def now(doing: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that never waits."""
    try:
        doing.send(None)
    except StopIteration as over:
        return cast(T, over.value)
    raise AssertionError("it waits")


class Cluster:
    """Nodes that do to one run whatever they may think of, and what each believes of its claim."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self.instant = Instant()
        database = cast(Database, self.instant)
        self.stores = [
            RunStore(database, f"n{number}", lease_seconds=LEASE, clock=self.time, steady=self.time)
            for number in range(NODES)
        ]
        self.believed: list[StoredRun | None] = [None] * NODES
        self.ends: list[str] = []
        now(self.instant.change(self.stores[0].opening("run", "ann", b"{}")))
        self.seen = self.stored

    def time(self) -> float:
        return self.clock

    @property
    def stored(self) -> StoredRun:
        found = now(self.stores[0].load("run"))
        assert found is not None
        return found

    def claim(self, node: int) -> None:
        self.believed[node] = now(self.stores[node].claim("run")) or self.believed[node]

    def beat(self, node: int) -> None:
        now(self.stores[node].renew(["run"]))

    def free(self, node: int) -> None:
        now(self.stores[node].take_abandoned())

    def release(self, node: int) -> None:
        if (claim := self.believed[node]) is not None and now(self.stores[node].release("run", claim.token)):
            self.is_held_by(node, claim)

    def turn(self, node: int, waits: bool) -> None:
        if (claim := self.believed[node]) is not None:
            try:
                now(self.stores[node].set_waiting("run", claim.token, waits))
            except RunLeaseLost:
                assert claim.token != self.seen.token or self.seen.state in ("queued", *ENDS)
                return
            self.is_held_by(node, claim)

    def is_held_by(self, node: int, claim: StoredRun) -> None:
        """Whoever could write must have been the last to claim the run."""
        assert (self.seen.token, self.seen.node) == (claim.token, f"n{node}")

    def end(self, node: int, how: End) -> None:
        if (claim := self.believed[node]) is not None:
            try:
                now(self.instant.change(self.stores[node].ending("run", claim.token, how)))
            except RunLeaseLost:
                return
            self.is_held_by(node, claim)
            self.ends.append(how)

    def cancel(self, node: int) -> None:
        now(self.stores[node].cancel("run"))

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds

    def look(self) -> None:
        """What must hold whatever happened last."""
        before, after = self.seen, self.stored
        assert after.state in LEADS_TO[before.state], f"{before.state} → {after.state}"
        assert after.token >= before.token
        assert len(self.ends) <= 1
        assert after.is_over == bool(self.ends)
        assert not self.ends or after.state == self.ends[0]
        if before.node != after.node and after.node:
            assert after.token > before.token  # a new holder has a new number
        self.seen = after


class Racing(RuleBasedStateMachine):
    """fault: M8"""

    nodes = st.integers(0, NODES - 1)

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()

    @rule(node=nodes)
    def claim(self, node: int) -> None:
        self.cluster.claim(node)

    @rule(node=nodes)
    def beat(self, node: int) -> None:
        self.cluster.beat(node)

    @rule(node=nodes)
    def free(self, node: int) -> None:
        self.cluster.free(node)

    @rule(node=nodes)
    def release(self, node: int) -> None:
        self.cluster.release(node)

    @rule(node=nodes, waits=st.booleans())
    def turn(self, node: int, waits: bool) -> None:
        self.cluster.turn(node, waits)

    @rule(node=nodes, how=st.sampled_from(sorted(ENDS)))
    def end(self, node: int, how: End) -> None:
        self.cluster.end(node, how)

    @rule(node=nodes)
    def cancel(self, node: int) -> None:
        self.cluster.cancel(node)

    @rule(seconds=st.sampled_from([1.0, LEASE - 0.5, LEASE + 1]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @invariant()
    def holds(self) -> None:
        self.cluster.look()

    def teardown(self) -> None:
        self.cluster.instant.db.close()


TestRacing = Racing.TestCase
TestRacing.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_long_walk_at_random_ends_every_run_once() -> None:
    """fault: M8; as many steps as TOOLGATE_STEPS says."""
    chance, left = random.Random(8), int(os.environ.get("TOOLGATE_STEPS", "10000"))
    while left > 0:
        walk(chance, min(left, 500))
        left -= 500


def walk(chance: random.Random, steps: int) -> None:
    """One run, at which all nodes pull."""
    cluster = Cluster()
    usual = [cluster.claim, cluster.beat, cluster.free, cluster.release, cluster.cancel]
    for _ in range(steps):
        node, luck = chance.randrange(NODES), chance.random()
        if luck < 0.01:
            cluster.end(node, chance.choice(get_args(End)))
        elif luck < 0.2:
            cluster.turn(node, chance.random() < 0.5)
        elif luck < 0.4:
            cluster.pass_time(chance.choice([1.0, LEASE + 1]))
        else:
            chance.choice(usual)(node)
        cluster.look()
    cluster.instant.db.close()
