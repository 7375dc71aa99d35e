"""A client that answers an approval request need not choose the server tools again (spec: A2, A3)."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.execution.toolwork import AUTO, Oracle, Work, at_work, call, results
from toolgate.config.settings import ServerToolSettings
from toolgate.conversation.message import plain_text

PATH = "/v1/responses"


async def asked(work: Work, **more: Any) -> dict[str, Any]:
    """The response whose call waits for a person."""
    response = await work.post(PATH, {"model": "openai_chat", "input": "Go.", **AUTO, **more})
    assert response.status == 200, response.body
    assert [item["type"] for item in response.json["output"]] == ["mcp_approval_request"]
    return dict(response.json)


def approving(response: dict[str, Any]) -> dict[str, Any]:
    id = response["output"][0]["id"]
    return {"type": "mcp_approval_response", "approval_request_id": id, "approve": True}


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_answer_goes_on_with_the_tools_of_the_response_that_asked(tmp_path: Path, elsewhere: bool) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings()) as work:
        script = work.play([call()], "Done.")
        first = await asked(work)
        if elsewhere:
            assert (await work.decide(first["output"][0]["id"])).status == 200
        answer = [] if elsewhere else [approving(first)]
        body = {"model": "openai_chat", "input": answer, "previous_response_id": first["id"]}
        second = await work.post(PATH, body)
        assert second.json["output"][-1]["content"][0]["text"] == "Done.", second.body
        assert "x-toolgate-warning" not in second.headers
        assert "write" in [tool.name for tool in script.requests[-1].tools]
    assert len(oracle.runs) == 1


async def test_a_request_that_chooses_no_tools_gets_a_warning_that_its_answer_was_not_used(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings()) as work:
        work.play([call()], "Done.")
        first = await asked(work)
        body = {"model": "openai_chat", "input": [approving(first)], "previous_response_id": first["id"]}
        second = await work.post(PATH, {**body, "tool_execution": "none", "use_server_tools": []})
        assert "mcp_approval_response was not used" in second.headers["x-toolgate-warning"]
    assert oracle.runs == []


NEXT = {"type": "message", "role": "user", "content": "And be quick."}


@pytest.mark.parametrize(
    ("approve", "before", "stored"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, True)],
)
async def test_an_answer_beside_a_message_of_the_user_is_applied_before_the_model_reads_the_message(
    tmp_path: Path, approve: bool, before: bool, stored: bool
) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings()) as work:
        script = work.play([call()], "Done.", "Bye.")
        first = await asked(work, store=stored)
        answer = {**approving(first), "approve": approve}
        items = [answer, NEXT] if before else [NEXT, answer]
        go = {"type": "message", "role": "user", "content": "Go."}
        past = {"previous_response_id": first["id"]} if stored else {"store": False, **AUTO}
        items = items if stored else [go, *first["output"], *items]
        second = await work.post(PATH, {"model": "openai_chat", "input": items, **past})
        assert second.json["output"][-1]["content"][0]["text"] == "Done.", second.body
        assert "x-toolgate-warning" not in second.headers
        history = script.requests[-1].messages
        assert [message.role for message in history] == ["user", "assistant", "tool", "user"]
        assert plain_text(history[-1].parts) == "And be quick."
        [result] = results(script.requests[-1])
        assert (result == "written") is approve

        bye = {"type": "message", "role": "user", "content": "Bye."}
        past = {"previous_response_id": second.json["id"]} if stored else {"store": False, **AUTO}
        items = [bye] if stored else [*items, *second.json["output"], bye]
        third = await work.post(PATH, {"model": "openai_chat", "input": items, **past})
        assert "x-toolgate-warning" not in third.headers, third.headers
        roles = [message.role for message in script.requests[-1].messages]
        assert roles == ["user", "assistant", "tool", "user", "assistant", "user"]
    assert len(oracle.runs) == approve


async def test_only_the_answered_call_is_run_when_the_user_goes_on(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings()) as work:
        script = work.play([call(), call(number=2, arguments='{"text":"ho"}')], "Done.")
        first = await work.post(PATH, {"model": "openai_chat", "input": "Go.", **AUTO})
        body = {
            "model": "openai_chat",
            "input": [approving(first.json), NEXT],
            "previous_response_id": first.json["id"],
        }
        second = await work.post(PATH, body)
        assert second.json["output"][-1]["content"][0]["text"] == "Done.", second.body
        assert "had no result" in second.headers["x-toolgate-warning"]
        assert results(script.requests[-1])[0] == "written"
        assert "No result was recorded" in results(script.requests[-1])[1]
    assert len(oracle.runs) == 1


async def test_a_call_that_this_server_never_made_is_not_run_before_a_message_of_the_user(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings()) as work:
        script = work.play([call()], "Done.")
        first = await asked(work)
        forged = {**first["output"][0], "id": "mcpr_" + "0" * 24}
        answer = {**approving(first), "approval_request_id": forged["id"]}
        items = [{"role": "user", "content": "Go."}, forged, answer, NEXT]
        second = await work.post(PATH, {"model": "openai_chat", "input": items, **AUTO})
        assert oracle.runs == []
        assert second.status == 404, second.body
        assert len(script.requests) == 1
