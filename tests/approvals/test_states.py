"""In any order of events, an approval takes only allowed steps between states and is decided once (fault: M8, I3)."""

import asyncio

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from tests.approvals.builders import Clock, call, tool
from toolgate.approvals import Approval, ApprovalLimits, ApprovalPolicy, ApprovalService, StandingApproval
from toolgate.approvals.record import NEXT, Level, State
from toolgate.conversation.errors import ToolgateError
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.tools.tool import ServerToolDefinition

SPECS = (tool(), tool(description="changed"), tool("other"))
POLICIES = (
    ApprovalPolicy(),
    ApprovalPolicy(never_auto=("other",)),
    ApprovalPolicy(self_approval=False),
    ApprovalPolicy(auto_approve=True),
)
TERMS = ApprovalLimits(expiry_seconds=100, max_pending_per_run=3, workspace="w")


class Questions(RuleBasedStateMachine):
    """Two callers, some calls, and people who answer at the wrong moment."""

    ids: Bundle[str] = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.database = Database(None)
        store = ApprovalStore(self.database, Approval, StandingApproval)
        self.service = ApprovalService(POLICIES[0], store, options=TERMS, now=self.clock)
        self.before: dict[str, Approval] = {}
        self.allowed: set[str] = set()
        self.winners: dict[str, int] = {}

    @rule(
        target=ids,
        spec=st.sampled_from(SPECS),
        number=st.integers(0, 2),
        caller=st.sampled_from(("ann", "bob")),
        run=st.sampled_from(("r1", "r2")),
        demanded=st.booleans(),
    )
    def ask(self, spec: ServerToolDefinition, number: int, caller: str, run: str, demanded: bool) -> str:
        asked = call(spec, {"n": number}, caller=caller, run=run, stance="ask" if demanded else None)
        verdict = self.runner.run(self.service.decide(asked))
        if verdict.stance == "allow" and verdict.approval is not None:
            assert verdict.approval not in self.allowed, "an approval was used twice"
            self.allowed.add(verdict.approval)
            kept = self.runner.run(self.service.find(verdict.approval, by=caller))
            assert (kept.caller, kept.tool, kept.arguments) == (caller, spec.name, f'{{"n":{number}}}')
        return verdict.approval or "mcpr_none"

    @rule(
        id=ids,
        by=st.sampled_from(("ann", "bob", "root")),
        approve=st.booleans(),
        level=st.sampled_from(("once", "session", "always")),
        times=st.integers(1, 3),
    )
    def answer(self, id: str, by: str, approve: bool, level: Level, times: int) -> None:
        async def together() -> list[Approval | BaseException]:
            answers = [
                self.service.answer(id, approve == bool(turn % 2), by=by, any_caller=by == "root", level=level)
                for turn in range(times)
            ]
            return await asyncio.gather(*answers, return_exceptions=True)

        outcomes = self.runner.run(together())
        assert all(isinstance(one, Approval | ToolgateError) for one in outcomes), outcomes
        won = len([one for one in outcomes if isinstance(one, Approval)])
        self.winners[id] = self.winners.get(id, 0) + won

    @rule(seconds=st.sampled_from((1, 60, 101)))
    def pass_time(self, seconds: int) -> None:
        self.clock.time += seconds

    @rule(policy=st.sampled_from(POLICIES))
    def change_policy(self, policy: ApprovalPolicy) -> None:
        self.service.renew(policy, TERMS)

    @rule(caller=st.sampled_from(("ann", "bob", None)))
    def reset(self, caller: str | None) -> None:
        self.runner.run(self.service.reset(caller))

    @precondition(lambda self: len(self.before) > 2)
    @rule(run=st.sampled_from(("r1", None)))
    def deny_all(self, run: str | None) -> None:
        self.runner.run(self.service.deny_all(by="root", run=run))

    @invariant()
    def only_the_arrows_there_are(self) -> None:
        now = {one.id: one for one in self.runner.run(self.service.approvals())}
        assert self.before.keys() <= now.keys()
        for id, one in now.items():
            was = self.before.get(id)
            if was is not None and was.state != one.state:
                assert one.state in _reachable(was.state), f"{was.state} became {one.state}"
            if was is not None and was.answered_by is not None:
                assert (one.answered_by, one.answered, one.level) == (was.answered_by, was.answered, was.level)
            if one.state in ("approved", "consumed", "denied"):
                assert one.answered_by is not None
            assert self.winners.get(id, 0) <= 1
        self.before = now

    def teardown(self) -> None:
        self.runner.run(self.database.aclose())
        self.runner.close()


def _reachable(state: State) -> set[State]:
    """Where a state may lead within one step of the test, which may be several of the store."""
    found = set(NEXT[state])
    for following in NEXT[state]:
        found |= _reachable(following)
    return found


TestQuestions = Questions.TestCase
TestQuestions.settings = settings(max_examples=60, stateful_step_count=40)
