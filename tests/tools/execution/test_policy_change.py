"""The policy changes while a run waits for a person: it goes on waiting, for the question that holds now."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.tools.execution.toolwork import Oracle, Work, at_work, call, soon
from toolgate.app.reloadable_tool_settings import reloadable_tool_settings
from toolgate.config import Secret
from toolgate.config.settings import ApprovalRuleSettings, ApprovalSettings, ServerToolSettings
from toolgate.tools.tool import Annotations

ASKING = ServerToolSettings(approvals=ApprovalSettings(default="ask"))
STRICTER = ServerToolSettings(
    approvals=ApprovalSettings(default="ask", rules=(ApprovalRuleSettings(stance="ask", tools=("write",)),))
)


async def begin(work: Work) -> str:
    """The path of a background response that calls a tool."""
    work.play([call()], "Done.")
    made = (await work.ask("openai_responses", store=True, background=True)).json
    return f"/v1/responses/{made['id']}"


async def ended(work: Work, path: str) -> Any:
    async def look() -> Any:
        found = (await work.get(path)).json
        return found if found["status"] not in ("queued", "in_progress") else None

    return await soon(look, seconds=30)


async def another(work: Work, known: str) -> dict[str, Any]:
    """The question that stands for one that went out of scope."""

    async def look() -> Any:
        found = (await work.get("/v1/approvals?state=pending")).json["data"]
        return [one for one in found if one["id"] != known]

    return dict((await soon(look, seconds=30))[0])


async def test_a_run_asks_again_when_the_policy_changes_and_waits_for_that_answer(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path / "ran", annotations=Annotations(open_world=True))
    async with at_work(oracle, storage=Secret(f"sqlite:///{tmp_path}/a.db"), tools=ASKING) as work:
        path = await begin(work)
        first = await work.waiting()
        assert work.gate.services.tools is not None
        work.gate.services.tools.apply(reloadable_tool_settings(replace(work.gate.config, tools=STRICTER)))
        second = await another(work, first["id"])
        assert (await work.decide(first["id"])).status == 409
        assert (await work.get(path)).json["status"] == "in_progress"
        assert (await work.decide(second["id"])).status == 200
        response = await ended(work, path)
    assert "mcp_approval_request" not in [item["type"] for item in response["output"]]
    assert len(oracle.runs) == 1
