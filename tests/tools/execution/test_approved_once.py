"""An approval is good for one call, once, however often it is asked for, answered or gone on with (spec: A2, A3).

Over the whole server, on real sockets. An oracle writes down every run.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tools.execution.toolwork import Oracle, Work, at_work, call, output, results, soon
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.engine.tool_loop import INTERRUPTED_CALL
from toolgate.tools.execution.stored_turns import StoredRunJournal
from toolgate.tools.tool import Annotations

ASKING = ServerToolSettings(approvals=ApprovalSettings(hold_seconds=5))


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    return Oracle(tmp_path / "runs")


async def _for_ever(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.fixture
def endless(tmp_path: Path) -> Oracle:
    """It has its effect at once and then never ends."""
    return Oracle(tmp_path / "runs", give=_for_ever, timeout=60.0)


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_call_that_waited_for_a_person_is_one_round_however_often_it_is_asked_for(
    oracle: Oracle, rounds: int
) -> None:
    """spec: X2, A3"""
    async with at_work(oracle, tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=0.01))) as work:
        script = work.play([call()], "Done.")
        for _ in range(3):
            assert "waits for approval" in output("openai_chat", await work.ask(max_tool_rounds=rounds))
        assert (await work.decide((await work.waiting())["id"])).status == 200
        assert output("openai_chat", await work.ask(max_tool_rounds=rounds)) == "Done."
        assert results(script.requests[1]) == ["written"]
        assert len(oracle.runs) == 1


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
async def test_one_approval_lets_one_of_two_identical_calls_run(oracle: Oracle, client: str) -> None:
    """spec: A2: it is used up by the call that it allows."""
    async with at_work(oracle, tools=ASKING) as work:

        def answer(request: Any) -> Any:
            return "Done." if results(request) else [call()]

        work.play(*[answer] * 6)
        both = [asyncio.ensure_future(work.ask(client)) for _ in range(2)]
        await work.decide((await work.waiting())["id"])
        await soon(lambda: len(oracle.runs) == 1)
        assert (await work.decide((await work.waiting())["id"], "deny")).status == 200
        await asyncio.gather(*both)
        assert len(oracle.runs) == 1


async def test_an_approval_is_answered_once_and_its_call_runs_once(oracle: Oracle) -> None:
    """spec: A2; fault: M1, A2"""
    async with at_work(oracle, tools=ASKING) as work:
        work.play([call()], "Done.")
        asking = asyncio.ensure_future(work.ask())
        id = (await work.waiting())["id"]
        answers = await asyncio.gather(*[work.decide(id) for _ in range(20)])
        assert sorted([one.status for one in answers]) == [200, *[409] * 19]
        assert output("openai_chat", await asking) == "Done."
        assert len(oracle.runs) == 1


async def asked(work: Work) -> tuple[str, str]:
    """Have the model ask for an approval over Responses: the ids of the response and of the approval."""
    first = await work.ask("openai_responses", store=True)
    item = next(item for item in first.json["output"] if item["type"] == "mcp_approval_request")
    return first.json["id"], item["id"]


def decided(previous: str, id: str) -> dict[str, Any]:
    answer = {"type": "mcp_approval_response", "approval_request_id": id, "approve": True}
    return {"input": [answer], "previous_response_id": previous, "store": True}


async def test_the_same_approving_request_again_after_a_departure_runs_nothing_twice(endless: Oracle) -> None:
    """spec: A3; fault: K-D"""
    async with at_work(endless, tools=ASKING) as work:
        script = work.play([call()], "Checking.")
        previous, id = await asked(work)
        async with work.asking("openai_responses", **decided(previous, id)) as caller:
            await asyncio.wait_for(endless.began.wait(), 30)
            caller.abort()
        response = await work.ask("openai_responses", stream=True, **decided(previous, id))
        assert b"Checking." in response.body, response.body
        assert results(script.requests[1]) == [INTERRUPTED_CALL]
        assert len(endless.runs) == 1


@pytest.mark.parametrize("annotations", [Annotations(), Annotations(idempotent=True)], ids=["unsafe", "idempotent"])
async def test_the_same_approving_request_again_after_an_upstream_failed_goes_on(
    tmp_path: Path, annotations: Annotations
) -> None:
    oracle = Oracle(tmp_path / "runs", annotations=annotations)
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], UpstreamUnavailable("Out of order."), "Written.")
        previous, id = await asked(work)
        assert (await work.ask("openai_responses", **decided(previous, id))).status == 502
        response = await work.ask("openai_responses", **decided(previous, id))
        assert output("openai_responses", response) == "Written."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


async def test_the_same_approving_request_after_its_run_is_over_finds_the_result(oracle: Oracle) -> None:
    """spec: A2: for a client to which the answer was lost on its last yards."""
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], "Done.", "Done.")
        previous, id = await asked(work)
        for _ in range(2):
            assert output("openai_responses", await work.ask("openai_responses", **decided(previous, id))) == "Done."
        assert results(script.requests[2]) == ["written"]
        assert (await work.decide(id)).status == 409
        assert len(oracle.runs) == 1


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
async def test_consent_that_was_used_up_for_a_call_that_never_began_is_not_asked_for_again(
    oracle: Oracle, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec: A3; fault: K-D: the server was killed between the two."""
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], "Done.")
        with monkeypatch.context() as patched:
            patched.setattr(StoredRunJournal, "starting", _killed)
            asking = asyncio.ensure_future(work.ask(client))
            id = (await work.waiting())["id"]
            assert (await work.decide(id)).status == 200
            assert (await asking).status == 500
        assert (await work.get(f"/v1/approvals/{id}")).json["state"] == "consumed"
        assert output(client, await work.ask(client)) == "Done."
        assert (await work.get("/v1/approvals")).json["data"][0]["id"] == id
        assert results(script.requests[1]) == ["written"]
        assert len(oracle.runs) == 1


async def _killed(journal: StoredRunJournal, call: Any, repeatable: bool) -> None:
    raise RuntimeError("the process ends here")
