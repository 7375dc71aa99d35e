"""The runner reports how every call ended, also a cancelled one (spec: D1, D3)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from toolgate.testing import FakeTool
from toolgate.tools.runner import (
    ApprovalPendingOutcome,
    CallApprovalOptions,
    FinishedCallObserver,
    FinishedCallReport,
    ToolRunner,
    new_invocation,
)
from toolgate.tools.tool import Annotations, CallApprovalOutcome, ProposedCall, ServerToolDefinition, Stance, ToolOutput

HARMLESS, HARMFUL = Annotations(read_only=True, idempotent=True), Annotations(read_only=False, idempotent=False)


class FixedApprovals:
    """Gives the same verdict on every call."""

    def __init__(self, stance: Any = "allow") -> None:
        self._verdict = CallApprovalOutcome(stance, approval="a1" if stance == "pending" else None)

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        return "allow"

    async def decide(self, query: ProposedCall) -> CallApprovalOutcome:
        return self._verdict

    async def wait(self, approval: str, seconds: float) -> bool:
        return False


def observer(ends: list[FinishedCallReport]) -> FinishedCallObserver:
    """Make an observer that appends to the list."""

    def append(ended: FinishedCallReport) -> None:
        ends.append(ended)

    return append


async def outcome(tool: FakeTool, text: str = "{}", stance: str = "allow") -> list[str]:
    ended: list[FinishedCallReport] = []
    runner = ToolRunner(FixedApprovals(stance), on_end=observer(ended))
    await runner.run(tool, new_invocation("call_1", text, "ann"), CallApprovalOptions("run_1"))
    assert all((one.run, one.invocation.caller, one.spec) == ("run_1", "ann", tool.spec) for one in ended)
    return [one.outcome for one in ended]


def crash(arguments: Mapping[str, Any]) -> str:
    raise RuntimeError("a defect")


async def hang(arguments: Mapping[str, Any]) -> str:
    return await asyncio.Future[str]()


async def test_each_outcome_is_reported_by_its_own_name() -> None:
    good = FakeTool("good", lambda arguments: "yes")
    assert await outcome(good) == ["ok"]
    assert await outcome(good, "[]") == ["refused"]
    assert await outcome(good, "{") == ["refused"]
    assert await outcome(good, stance="deny") == ["denied"]
    assert await outcome(FakeTool("bad", crash)) == ["error"]
    assert await outcome(FakeTool("sad", lambda arguments: ToolOutput((), is_error=True))) == ["error"]
    assert await outcome(FakeTool("slow", hang, timeout=0.01)) == ["timeout"]


async def test_a_call_that_waits_for_a_person_has_not_ended() -> None:
    ended: list[FinishedCallReport] = []
    runner = ToolRunner(FixedApprovals("pending"), on_end=observer(ended))
    tool = FakeTool("good", lambda arguments: "yes")
    assert await runner.run(
        tool, new_invocation("call_1", "{}", "ann"), CallApprovalOptions("run_1")
    ) == ApprovalPendingOutcome("a1")
    assert ended == []


@pytest.mark.parametrize(("annotations", "word"), [(HARMLESS, "cancelled"), (HARMFUL, "outcome_unknown")])
async def test_of_a_harmful_call_that_was_cut_off_the_outcome_is_unknown(annotations: Annotations, word: str) -> None:
    ended: list[FinishedCallReport] = []
    begun = asyncio.Event()

    async def give(arguments: Mapping[str, Any]) -> str:
        begun.set()
        return await asyncio.Future[str]()

    runner = ToolRunner(FixedApprovals(), on_end=observer(ended))
    tool = FakeTool("tool", give, annotations=annotations)
    running = asyncio.ensure_future(
        runner.run(tool, new_invocation("call_1", "{}", "ann"), CallApprovalOptions("run_1"))
    )
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [one.outcome for one in ended] == [word]
