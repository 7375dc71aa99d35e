"""Cancel, complete, approve, deny and expire, at the same moment and from two nodes: everything ends once (fault: M8).

Whatever stands together in a volley is begun together, over two connections to one database of either engine. A long walk
is made with TOOLGATE_STEPS=100000.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Mapping
from itertools import count
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.approvals.builders import Clock, call
from toolgate.approvals import Approval, ApprovalLimits, ApprovalPolicy, ApprovalService, StandingApproval
from toolgate.approvals.record import NEXT, State
from toolgate.conversation.errors import ToolgateError
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.storage.runs import ENDS, RunLeaseLost, RunStore, StoredRun

STEPS, WALK = int(os.environ.get("TOOLGATE_STEPS", "600")), 20
LEASE, STANDS = 6.0, 100.0
LIVE = frozenset({"queued", "running", "waiting"})
DEEDS = (
    "approve",
    "deny",
    "call",
    "call",
    "approve",
    "claim",
    "wait",
    "cancel",
    "complete",
    "fail",
    "release",
    "deny all",
)

T = TypeVar("T")
numbers = count(1)


class Node:
    """What one process knows of the run: its stores, and the claim that it believes to have."""

    def __init__(self, name: str, database: Database, clock: Clock) -> None:
        self.database = database
        self.runs = RunStore(database, name, lease_seconds=LEASE, clock=clock, steady=clock)
        ledger = ApprovalStore(database, Approval, StandingApproval)
        terms = ApprovalLimits(expiry_seconds=STANDS, max_pending_per_run=1000)
        self.service = ApprovalService(ApprovalPolicy(), ledger, options=terms, now=clock)
        self.claim: StoredRun | None = None


class Races(RuleBasedStateMachine):
    """One run after the other, with calls that a person is asked about."""

    databases: tuple[Database, Database]
    runner: asyncio.Runner

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.nodes = [Node(f"n{number}", database, self.clock) for number, database in enumerate(self.databases)]
        self.id = f"run_{next(numbers)}"
        self.ends: list[str] = []
        self.won: dict[str, list[State]] = {}
        self.used = Counter[str]()
        self._run(self.databases[0].change(self.nodes[0].runs.opening(self.id, "ann", b"{}", 1_000_000)))
        self.run = self._stored()
        self.approvals: Mapping[str, Approval] = {}
        self._run(self._do(self.nodes[0], "claim"))
        self._run(self._do(self.nodes[0], "call"))
        self.run, self.approvals = self._stored(), self._approvals()

    @rule(deeds=st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(DEEDS)), min_size=2, max_size=6))
    def volley(self, deeds: list[tuple[int, str]]) -> None:
        async def together() -> None:
            await asyncio.gather(*[self._do(self.nodes[node], deed) for node, deed in deeds])

        self._run(together())

    @rule(seconds=st.sampled_from((1.0, STANDS - 2, LEASE + 1, STANDS + 1)))
    def pass_time(self, seconds: float) -> None:
        self.clock.time += seconds
        self._run(self.nodes[0].runs.take_abandoned())

    async def _do(self, node: Node, deed: str) -> None:
        token = node.claim.token if node.claim else -1
        match deed:
            case "claim":
                node.claim = await node.runs.claim(self.id) or node.claim
            case "release":
                await node.runs.release(self.id, token)
            case "cancel":
                await node.runs.cancel(self.id)
            case "wait":
                await _unless_lost(node.runs.set_waiting(self.id, token, True))
            case "complete" | "fail":
                await self._end(node, token, "completed" if deed == "complete" else "failed")
            case "call":
                await self._call(node, token)
            case "approve" | "deny":
                await self._answer(node, deed == "approve")
            case "deny all":
                for id in await node.service.deny_all(by="root", run=self.id):
                    self.won.setdefault(id, []).append("denied")

    async def _end(self, node: Node, token: int, how: Any) -> None:
        if await _unless_lost(node.database.change(node.runs.ending(self.id, token, how))):
            self.ends.append(how)

    async def _call(self, node: Node, token: int) -> None:
        """What a node does before it runs a tool: it asks whether it has the run, and whether a person agrees."""
        over = self.run.is_over
        if await _unless_lost(node.runs.check(self.id, token)):
            assert not over, "a run that has ended calls a tool"
            verdict = await node.service.decide(call(run=self.id, arguments={"run": self.id}))
            if verdict.stance == "allow":
                assert verdict.approval is not None
                self.used[verdict.approval] += 1

    async def _answer(self, node: Node, approve: bool) -> None:
        waiting = [one for one in self.approvals.values() if one.state == "pending"]
        for id in [one.id for one in waiting] or list(self.approvals)[:1]:
            try:
                self.won.setdefault(id, []).append((await node.service.answer(id, approve, by="ann")).state)
            except ToolgateError as refused:
                if refused.status not in (409, 410):
                    raise

    @invariant()
    def every_change_is_one_that_there_is(self) -> None:
        if not hasattr(self, "run"):
            return
        before, self.run = self.run, self._stored()
        assert self.run.token >= before.token
        assert self.run == before or not before.is_over, "an end is an end"
        assert len(self.ends) <= 1
        assert [self.run.state] == self.ends if self.run.is_over else not self.ends
        known, self.approvals = self.approvals, self._approvals()
        for id, one in self.approvals.items():
            was: State = known[id].state if id in known else "pending"
            assert one.state == was or one.state in _reachable(was), f"{was} became {one.state}"
            assert len(self.won.get(id, [])) <= 1, "it was answered twice"
            assert self.used[id] == (one.state == "consumed"), "it was used twice, or without consent"
            if one.state in ("approved", "consumed", "denied"):
                assert self.won[id] == ["denied" if one.state == "denied" else "approved"]

    def _stored(self) -> StoredRun:
        found = self._run(self.nodes[0].runs.load(self.id))
        assert found is not None
        assert found.state in LIVE | ENDS
        return found

    def _approvals(self) -> Mapping[str, Approval]:
        found = self._run(self.nodes[1].service.approvals("ann"))
        return {one.id: one for one in found if one.run == self.id}

    def _run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())


async def _unless_lost(work: Awaitable[object]) -> bool:
    """Whether the claim was good for it."""
    try:
        await work
    except RunLeaseLost:
        return False
    return True


def _reachable(state: State) -> set[State]:
    """Where a state may lead within one volley."""
    found = set(NEXT[state])
    for following in NEXT[state]:
        found |= _reachable(following)
    return found


def test_whatever_races_every_run_and_every_approval_ends_once(storage_url: str) -> None:
    """fault: M8"""
    databases = (Database(storage_url), Database(storage_url))
    with asyncio.Runner() as runner:
        machine = type("Races", (Races,), {"databases": databases, "runner": runner})
        few = settings(
            max_examples=max(1, STEPS // WALK),
            stateful_step_count=WALK,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),  # what is a matter of moments cannot be made smaller
        )
        run_state_machine_as_test(machine, settings=few)
        for database in databases:
            runner.run(database.aclose())
