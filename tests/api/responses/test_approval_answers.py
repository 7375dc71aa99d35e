"""A client that answers an approval request need not choose the server tools again (spec: A2, A3)."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.execution.toolwork import AUTO, Oracle, Work, at_work, call
from toolgate.config.settings import ToolSettings

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
    async with at_work(oracle, tools=ToolSettings()) as work:
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


async def test_a_request_that_chooses_no_tools_is_told_that_its_answer_was_not_used(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ToolSettings()) as work:
        work.play([call()], "Done.")
        first = await asked(work)
        body = {"model": "openai_chat", "input": [approving(first)], "previous_response_id": first["id"]}
        second = await work.post(PATH, {**body, "tool_execution": "none", "use_server_tools": []})
        assert "mcp_approval_response was not used" in second.headers["x-toolgate-warning"]
    assert oracle.runs == []
