"""Whoever keeps count of tools hears how every call ended, also one that was cut off (D1, D3)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from toolgate.testing import FakeTool
from toolgate.tools.runner import Consent, Ended, Runner, Waiting, invocation
from toolgate.tools.tool import Annotations, Asked, Output, Stance, ToolSpec, Verdict

HARMLESS, HARMFUL = Annotations(read_only=True, idempotent=True), Annotations(read_only=False, idempotent=False)


class Saying:
    """Says the same of every call."""

    def __init__(self, said: Any = "allow") -> None:
        self._verdict = Verdict(said, approval="a1" if said == "pending" else None)

    def stance(self, spec: ToolSpec, caller: str) -> Stance:
        return "allow"

    async def decide(self, asked: Asked) -> Verdict:
        return self._verdict

    async def wait(self, approval: str, seconds: float) -> bool:
        return False


async def outcome(tool: FakeTool, text: str = "{}", said: str = "allow") -> list[str]:
    ended: list[Ended] = []
    runner = Runner(Saying(said), ran=ended.append)
    await runner.run(tool, invocation("call_1", text, "ann"), Consent("run_1"))
    assert all((one.run, one.asked.caller, one.spec) == ("run_1", "ann", tool.spec) for one in ended)
    return [one.outcome for one in ended]


def crash(arguments: Mapping[str, Any]) -> str:
    raise RuntimeError("a defect")


async def hang(arguments: Mapping[str, Any]) -> str:
    return await asyncio.Future[str]()


async def test_each_end_has_its_own_word() -> None:
    good = FakeTool("good", lambda arguments: "yes")
    assert await outcome(good) == ["ok"]
    assert await outcome(good, "[]") == ["refused"]
    assert await outcome(good, "{") == ["refused"]
    assert await outcome(good, said="deny") == ["denied"]
    assert await outcome(FakeTool("bad", crash)) == ["error"]
    assert await outcome(FakeTool("sad", lambda arguments: Output((), is_error=True))) == ["error"]
    assert await outcome(FakeTool("slow", hang, timeout=0.01)) == ["timeout"]


async def test_a_call_that_waits_for_a_person_has_not_ended() -> None:
    ended: list[Ended] = []
    runner = Runner(Saying("pending"), ran=ended.append)
    tool = FakeTool("good", lambda arguments: "yes")
    assert await runner.run(tool, invocation("call_1", "{}", "ann"), Consent("run_1")) == Waiting("a1")
    assert ended == []


@pytest.mark.parametrize(("annotations", "word"), [(HARMLESS, "cancelled"), (HARMFUL, "outcome_unknown")])
async def test_of_a_harmful_call_that_was_cut_off_the_outcome_is_unknown(annotations: Annotations, word: str) -> None:
    ended: list[Ended] = []
    begun = asyncio.Event()

    async def give(arguments: Mapping[str, Any]) -> str:
        begun.set()
        return await asyncio.Future[str]()

    runner = Runner(Saying(), ran=ended.append)
    tool = FakeTool("tool", give, annotations=annotations)
    running = asyncio.ensure_future(runner.run(tool, invocation("call_1", "{}", "ann"), Consent("run_1")))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [one.outcome for one in ended] == [word]
