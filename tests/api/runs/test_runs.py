"""Runs are listed with their timelines, followed live and cancelled by those who may see them (spec: E8, D1)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tools.execution.toolwork import AUTO, CANARY, Oracle, Work, at_work, call, soon
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text
from toolgate.testing import FakeTool
from toolgate.tools.tool import Annotations

KEYS = tuple(
    KeySettings(name=name, key=Secret(f"{name}-key"), scopes=scopes)  # type: ignore[arg-type]
    for name, scopes in (("ann", ("chat", "tools")), ("bob", ("chat",)), ("root", ("chat", "tools", "admin")))
)
ASKING = ServerToolSettings(approvals=ApprovalSettings(default="ask", self_approval=True))


async def slowly(arguments: Any) -> str:
    await asyncio.sleep(0)
    return "written"


class Runs:
    """A server with the tools `read` and `write`, and clients of its keys."""

    def __init__(self, work: Work, write: Oracle) -> None:
        self.work = work
        self.write = write
        self.client = httpx.AsyncClient(base_url=work.url, timeout=60)

    async def get(self, path: str, who: str = "ann") -> Any:
        return (await self.client.get(path, headers={"authorization": f"Bearer {who}-key"})).json()

    async def post(self, path: str, body: Any, who: str = "ann") -> httpx.Response:
        return await self.client.post(path, json=body, headers={"authorization": f"Bearer {who}-key"})

    async def newest(self, who: str = "ann") -> Any:
        return await self.get(f"/v1/runs/{(await self.get('/v1/runs', who))['data'][0]['id']}", who)

    async def background(self, text: str = "Go.", **more: Any) -> str:
        body = {"model": "openai_chat", "input": text, "background": True, **AUTO, **more}
        return str((await self.post("/v1/responses", body)).json()["id"])

    async def until(self, id: str, *states: str) -> Any:
        async def found() -> Any:
            run = await self.get(f"/v1/runs/{id}")
            return run if run["state"] in states else None

        return await soon(found)


@pytest.fixture
async def runs(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    write = Oracle(tmp_path / "runs")
    tools = getattr(request, "param", None)
    changes = {"tools": tools} if tools else {}
    read = FakeTool("read", lambda arguments: f"It says {CANARY}.", annotations=Annotations(read_only=True))
    async with at_work(write, read, keys=KEYS, **changes) as work:
        runs = Runs(work, write)
        yield runs
        await runs.client.aclose()


def outcomes(run: Any) -> list[tuple[Any, ...]]:
    return [(one["type"], one["step"], one.get("tool"), one["outcome"]) for one in run["timeline"]]


TWO_STEPS = [
    ("step", 1, None, "tool_calls"),
    ("call", 1, "read", "completed"),
    ("call", 1, "write", "completed"),
    ("step", 2, None, "answer"),
]


@pytest.mark.parametrize("background", [False, True])
async def test_a_stored_run_shows_every_step_and_call_with_its_content(runs: Runs, background: bool) -> None:
    runs.work.play([Text("Let me see."), call("read", "{}"), call("write")], "All done.")
    body = {"model": "openai_chat", "input": "Go.", "background": background, **AUTO}
    response = (await runs.post("/v1/responses", body)).json()["id"]
    run = (await runs.get("/v1/runs"))["data"][0]
    run = await runs.until(run["id"], "completed")
    assert outcomes(run) == TWO_STEPS
    assert (run["kind"], run["response"]) == ("background" if background else "foreground", response)
    assert (run["steps"], run["calls"], run["tools"], run["key"]) == (2, 2, ["read", "write"], "ann")
    assert (run["can_cancel"], run["can_fork"], run["forked_from"], run["error"]) == (False, True, None, None)
    first, read, write, last = run["timeline"]
    assert (first["text"], last["text"]) == ("Let me see.", "All done.")
    assert {"read", "write"} <= set(first["offered"]) == set(last["offered"])
    assert (read["arguments"], read["result"]) == ("{}", f"It says {CANARY}.")
    assert (write["arguments"], write["result"], write["source"]) == ('{"text":"hi"}', "written", "python")
    assert run["created"] <= run["started"] <= first["started"] <= first["ended"] <= read["started"] <= read["ended"]
    assert read["ended"] <= last["started"] <= last["ended"] <= run["ended"]
    assert first["input_tokens"] + last["input_tokens"] == run["input_tokens"] > 0
    listed = (await runs.get("/v1/runs"))["data"][0]
    assert listed == {name: value for name, value in run.items() if name != "timeline"}


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "ollama"])
async def test_a_run_that_is_not_stored_shows_its_steps_without_content(runs: Runs, client: str) -> None:
    runs.work.play([Text("Let me see."), call("read", "{}"), call("write")], "All done.")
    more: dict[str, Any] = {"store": False} if client == "openai_responses" else {}
    await runs.work.ask(client, key="ann-key", **more)
    run = await runs.newest()
    assert outcomes(run) == TWO_STEPS
    assert (run["kind"], run["response"], run["can_fork"]) == ("foreground", None, False)
    assert CANARY not in json.dumps(run)
    assert "Let me" not in json.dumps(run)
    (request,) = [one for one in (await runs.get("/v1/requests"))["data"] if one["run"]]
    assert request["run"] == run["id"] == request["id"]


async def test_a_background_response_without_tools_is_a_run_of_one_step(runs: Runs) -> None:
    runs.work.play("Hello.")
    id = await runs.background(tool_execution="none", use_server_tools=False)
    run = await runs.until(id, "completed")
    assert outcomes(run) == [("step", 1, None, "answer")]
    assert run["timeline"][0]["text"] == "Hello."
    assert run["timeline"][0]["input_tokens"] == run["input_tokens"] > 0


async def test_a_plain_request_is_no_run(runs: Runs) -> None:
    runs.work.play("Hello.")
    await runs.post("/v1/responses", {"model": "openai_chat", "input": "Hi"})
    assert (await runs.get("/v1/runs"))["data"] == []


async def test_calls_that_run_side_by_side_overlap(runs: Runs) -> None:
    both = asyncio.Event()

    async def meet(arguments: Any) -> str:
        if len(runs.write.runs) == 2:
            both.set()
        await both.wait()
        return "met"

    runs.write.give = meet
    runs.work.play([call(number=1), call(number=2)], "Done.")
    await runs.work.ask(key="ann-key")
    _, one, other, _ = (await runs.newest())["timeline"]
    assert one["started"] < other["ended"]
    assert other["started"] < one["ended"]


@pytest.mark.parametrize("runs", [ASKING], indirect=True)
@pytest.mark.parametrize(("decision", "outcome"), [("approve", "completed"), ("deny", "denied")])
async def test_a_call_that_waits_for_a_person_is_shown_as_waiting(runs: Runs, decision: str, outcome: str) -> None:
    runs.work.play([call()], "Done.")
    id = await runs.background()
    question = await runs.work.waiting("ann-key")
    run = await runs.until(id, "waiting")
    run = await soon(lambda: waits(runs, id))
    assert run["timeline"][1]["approval"] == question["id"]
    assert run["can_cancel"]
    await runs.work.decide(question["id"], decision, "ann-key")
    run = await runs.until(id, "completed")
    assert run["timeline"][1]["outcome"] == outcome
    assert run["timeline"][1]["approval"] == question["id"]


async def waits(runs: Runs, id: str) -> Any:
    run = await runs.get(f"/v1/runs/{id}")
    return run if len(run["timeline"]) > 1 and run["timeline"][1]["outcome"] == "waiting" else None


@pytest.mark.parametrize("runs", [ASKING], indirect=True)
async def test_a_response_that_ends_with_a_question_is_an_incomplete_run(runs: Runs) -> None:
    runs.work.play([call()], "Done.")
    tools = [{"type": "mcp", "server_label": "toolgate", "require_approval": "always"}]
    await runs.post("/v1/responses", {"model": "openai_chat", "input": "Go.", "tools": tools})
    run = await runs.newest()
    assert (run["state"], run["timeline"][1]["outcome"]) == ("incomplete", "waiting")
    assert run["timeline"][1]["arguments"] == '{"text":"hi"}'


@pytest.mark.parametrize("background", [False, True])
async def test_a_run_whose_model_fails_has_the_error(runs: Runs, background: bool) -> None:
    runs.work.play([call("read", "{}")], UpstreamUnavailable("out of order"))
    body = {"model": "openai_chat", "input": "Go.", "background": background, **AUTO}
    await runs.post("/v1/responses", body)
    run = await runs.until((await runs.get("/v1/runs"))["data"][0]["id"], "failed")
    assert outcomes(run) == [
        ("step", 1, None, "tool_calls"),
        ("call", 1, "read", "completed"),
        ("step", 2, None, "failed"),
    ]
    assert run["error"]


@pytest.mark.parametrize("background", [False, True])
async def test_a_running_run_is_cancelled_and_its_client_gets_an_error(runs: Runs, background: bool) -> None:
    runs.write.give = forever
    runs.work.play([call()], "Done.")
    body = {"model": "openai_chat", "input": "Go.", "background": background, **AUTO}
    asked = asyncio.ensure_future(runs.post("/v1/responses", body))
    await asyncio.wait_for(runs.write.began.wait(), 60)
    (run,) = (await runs.get("/v1/runs?state=running"))["data"]
    assert run["can_cancel"]
    cancelled = await runs.post(f"/v1/runs/{run['id']}/cancel", {})
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert cancelled.json()["timeline"][1]["outcome"] == "unknown", "it had begun, and may do harm"
    answered = await asked
    if not background:
        assert (answered.status_code, answered.json()["error"]["code"]) == (400, "run_cancelled")
    assert runs.write.cancelled == 1
    again = await runs.post(f"/v1/runs/{run['id']}/cancel", {})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "run_ended")


async def forever(arguments: Any) -> str:
    await asyncio.Event().wait()
    return ""


async def test_a_run_whose_client_leaves_is_cancelled(runs: Runs) -> None:
    runs.write.give = forever
    runs.work.play([call()], "Done.")
    async with runs.work.asking("openai_chat", key="ann-key"):
        await asyncio.wait_for(runs.write.began.wait(), 60)
    await runs.until((await runs.get("/v1/runs"))["data"][0]["id"], "cancelled")


async def test_a_run_is_followed_live_to_its_end(runs: Runs) -> None:
    release = asyncio.Event()

    async def held(arguments: Any) -> str:
        await release.wait()
        return "written"

    runs.write.give = held
    runs.work.play([call()], "Done.")
    id = await runs.background()
    seen: list[Any] = []
    headers = {"authorization": "Bearer ann-key"}
    async with runs.client.stream("GET", f"/v1/runs/{id}?stream=true", headers=headers) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        async for line in stream.aiter_lines():
            if line.startswith('data: {"object"'):
                seen.append(json.loads(line[6:]))
                if len(seen[-1]["timeline"]) > 1 and seen[-1]["timeline"][1]["outcome"] == "running":
                    release.set()
        assert line == ""
    assert [one["outcome"] for one in seen[-1]["timeline"]] == ["tool_calls", "completed", "answer"]
    assert seen[-1]["state"] == "completed"
    assert any(one["state"] == "running" for one in seen)
    assert seen[-1] == await runs.get(f"/v1/runs/{id}")


async def test_an_admin_sees_the_runs_of_all_keys_without_their_content(runs: Runs) -> None:
    runs.work.play([Text("Let me see."), call("read", "{}")], "All done.")
    await runs.post("/v1/responses", {"model": "openai_chat", "input": "Go.", **AUTO})
    (listed,) = (await runs.get("/v1/runs", "root"))["data"]
    run = await runs.get(f"/v1/runs/{listed['id']}", "root")
    assert [one["outcome"] for one in run["timeline"]] == ["tool_calls", "completed", "answer"]
    assert CANARY not in json.dumps(run)
    assert (run["key"], run["can_fork"]) == ("ann", False)
    assert (await runs.get("/v1/runs?key=bob", "root"))["data"] == []
    assert (await runs.get("/v1/runs", "bob"))["data"] == []
    assert (await runs.get(f"/v1/runs/{listed['id']}", "bob"))["error"]["code"] == "run_not_found"


async def test_runs_are_filtered_and_paged(runs: Runs) -> None:
    for _ in range(3):
        runs.work.play("Hello.")
        await runs.work.ask(key="ann-key")
    runs.work.play(UpstreamUnavailable("out of order"))
    await runs.work.ask(key="ann-key")
    ids = [one["id"] for one in (await runs.get("/v1/runs"))["data"]]
    assert len(ids) == 4
    assert [one["id"] for one in (await runs.get("/v1/runs?state=failed"))["data"]] == ids[:1]
    assert [one["id"] for one in (await runs.get("/v1/runs?state=completed&model=openai_chat"))["data"]] == ids[1:]
    assert (await runs.get("/v1/runs?model=nothing"))["data"] == []
    page = await runs.get(f"/v1/runs?limit=2&after={ids[0]}")
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (ids[1:3], True)
    page = await runs.get(f"/v1/runs?limit=2&before={ids[3]}")
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (ids[1:3], True)
    for query in ("state=blue", "since=x", "after=nothing", f"after={ids[0]}&before={ids[1]}"):
        assert "error" in await runs.get(f"/v1/runs?{query}")


async def test_without_its_response_a_run_has_no_content(runs: Runs) -> None:
    runs.work.play([call("read", "{}")], "All done.")
    response = (await runs.post("/v1/responses", {"model": "openai_chat", "input": "Go.", **AUTO})).json()["id"]
    await runs.client.delete(f"/v1/responses/{response}", headers={"authorization": "Bearer ann-key"})
    run = await runs.newest()
    assert (run["response"], run["can_fork"], run["timeline"][1]["result"]) == (None, False, None)
