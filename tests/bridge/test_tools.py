"""Tools that an editor lends: listed, selected, run and refused (spec: R2, V1, X2)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import cycle
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, HttpConnection, body
from tests.bridge.gateway import WEATHER, ask, gateway
from tests.bridge.scripted_editor import (
    GUARD,
    Frame,
    ScriptedEditor,
    call,
    delta,
    done,
    editor,
    failure,
    text,
)
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import VscodeSettings

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
AUTO: dict[str, Any] = {"use_vscode_tools": True, "tool_execution": "auto"}


def lent(name: str, *tags: str, schema: Any = WEATHER) -> Frame:
    return {"name": name, "description": f"The {name}.", "input_schema": schema, "tags": list(tags)}


TOOLS = [lent("get_weather", "vscode_web"), lent("get_time", "clock"), lent("set_alarm", "clock", schema=None)]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with gateway() as client:
        yield client


def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url)


def calls_then_answers(name: str, input: Any) -> Any:
    """The model calls a tool, then repeats its result; the editor runs the tool by echoing its input."""

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["type"] == "invoke":
            yield done(parts=text(f"Rain in {asked['input'].get('city')}"))
            return
        results = [part for one in asked["messages"] for part in one["parts"] if part["type"] == "tool_result"]
        yield delta(*(text(f"It says: {results[-1]['parts'][0]['text']}") if results else [call(name, input)]))
        yield done(usage={"input": 1, "output": 1})

    return script


async def test_lent_tools_are_listed_with_their_tags(http: httpx.AsyncClient) -> None:
    async with editor(url(http), tools=[*TOOLS, lent("mcp_toolgate_clock"), lent("no good name")]):
        listed = {one["name"]: one for one in (await http.get("/v1/tools")).json()["data"]}
        clocks = (await http.get("/v1/tools?tags=clock")).json()["data"]
        getters = (await http.get("/v1/tools?name=get_*")).json()["data"]
    assert {name for name, one in listed.items() if one["source"] == "vscode"} == {
        "get_weather",
        "get_time",
        "set_alarm",
    }
    assert listed["get_weather"]["tags"] == ["vscode_web"]
    assert [one["name"] for one in clocks] == ["get_time", "set_alarm"]
    assert [one["name"] for one in getters] == ["get_time", "get_weather"]
    assert "get_time" not in [one["name"] for one in (await http.get("/v1/tools")).json()["data"]]


@pytest.mark.parametrize("client", CLIENTS)
@BOTH
async def test_the_server_runs_lent_tools_for_every_client(http: httpx.AsyncClient, client: str, stream: bool) -> None:
    """field: E40"""
    script = calls_then_answers("get_weather", {"city": "Oslo"})
    async with editor(url(http), tools=TOOLS, script=script) as window:
        answer = await ask(http, client, "gpt-4o", stream, **AUTO)
    assert answer.text == "It says: Rain in Oslo", answer.raw
    first, second = window.all("ask")
    assert (first["round"], second["round"]) == (1, 2)
    [invoked] = window.all("invoke")
    assert (invoked["tool"], invoked["input"], invoked["seconds"]) == ("get_weather", {"city": "Oslo"}, 120)
    assert invoked["request"] == first["request"] == second["request"]


async def test_use_vscode_tools_means_those_of_the_editor_alone(http: httpx.AsyncClient) -> None:
    async with editor(url(http), tools=TOOLS) as window:
        await ask(http, "openai_chat", "gpt-4o", False, **AUTO)
        await ask(http, "openai_chat", "gpt-4o", False, use_vscode_tools=["get_*"], tool_execution="auto")
        await ask(http, "openai_chat", "gpt-4o", False, use_server_tools=True, tool_execution="auto")
        offered = [{one["name"] for one in asked["tools"]} for asked in window.all("ask")]
        await window.lend(tools=[])
        await ask(http, "openai_chat", "gpt-4o", False, **AUTO)
    assert offered[0] == {"get_weather", "get_time", "set_alarm"}
    assert offered[1] == {"get_weather", "get_time"}
    assert offered[2] > {"get_weather", "calculator"}
    assert "calculator" in {one["name"] for one in window.all("ask")[-1]["tools"]}


@pytest.mark.parametrize("input", [{}, {"city": 7}, {"city": "Oslo", "more": 1}])
async def test_invalid_arguments_never_reach_the_editor(http: httpx.AsyncClient, input: Any) -> None:
    async with editor(url(http), tools=TOOLS, script=calls_then_answers("get_weather", input)) as window:
        answer = await ask(http, "openai_chat", "gpt-4o", False, **AUTO)
    assert answer.status == 200
    assert window.all("invoke") == []


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("cancelled", "did not allow the call"),
        ("needs_turn", "failed in the editor"),
        ("timeout", "a dialog may be open"),
    ],
)
async def test_the_model_reads_why_a_call_failed(http: httpx.AsyncClient, code: str, shown: str) -> None:
    works = calls_then_answers("get_weather", {"city": "Oslo"})

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["type"] == "invoke":
            yield failure(code)
            return
        async for frame in works(window, asked):
            yield frame

    async with editor(url(http), tools=TOOLS, script=script):
        answer = await ask(http, "openai_chat", "gpt-4o", False, **AUTO)
    assert shown in answer.text


async def test_a_call_that_hangs_ends_at_its_deadline_and_is_cancelled() -> None:
    works = calls_then_answers("get_weather", {"city": "Oslo"})

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["type"] == "invoke":
            await asyncio.Event().wait()
        async for frame in works(window, asked):
            yield frame

    async with (
        gateway(vscode=VscodeSettings(tool_seconds=0.2)) as http,
        editor(url(http), tools=TOOLS, script=script) as w,
    ):
        answer = await ask(http, "openai_chat", "gpt-4o", False, **AUTO)
        await w.received("cancel", id=w.all("invoke")[0]["id"])
    assert "in time" in answer.text or "within" in answer.text


async def test_a_client_that_leaves_cancels_the_call(http: httpx.AsyncClient) -> None:
    works = calls_then_answers("get_weather", {"city": "Oslo"})

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["type"] == "invoke":
            await asyncio.Event().wait()
        async for frame in works(window, asked):
            yield frame

    async with editor(url(http), tools=TOOLS, script=script) as window:
        async with HttpConnection(url(http)) as caller:
            await caller.post("/v1/chat/completions", body("openai_chat", "gpt-4o", False, **AUTO))
            invoked = await window.received("invoke")
        await window.received("cancel", id=invoked["id"])


async def test_a_call_goes_to_the_window_that_the_client_names(http: httpx.AsyncClient) -> None:
    script = calls_then_answers("get_weather", {"city": "Oslo"})
    async with (
        editor(url(http), folders=["left"], tools=TOOLS, script=script) as left,
        editor(url(http), folders=["right"], tools=TOOLS, script=script) as right,
    ):
        await ask(http, "openai_chat", "gpt-4o", False, headers={"x-toolgate-window": "left"}, **AUTO)
        assert (len(left.all("invoke")), len(right.all("invoke"))) == (1, 0)


async def test_the_mcp_server_offers_lent_tools_except_to_editors(http: httpx.AsyncClient) -> None:
    async def offered(**headers: str) -> set[str]:
        sent = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accepts = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        response = await http.post("/mcp", json=sent, headers={**accepts, **headers})
        return {one["name"] for one in response.json()["result"]["tools"]}

    async with editor(url(http), tools=TOOLS):
        assert "get_weather" in await offered()
        assert "get_weather" not in await offered(**{"x-toolgate-editor": "window"})
        assert "calculator" in await offered(**{"x-toolgate-editor": "window"})


async def test_a_key_may_be_kept_from_lent_tools() -> None:
    keys = [
        KeySettings(name="all", key=Secret("all-secret"), scopes=("chat", "tools")),
        KeySettings(name="few", key=Secret("few-secret"), scopes=("chat", "tools"), blocked_tools=("vscode/*",)),
    ]
    async with gateway(keys=tuple(keys)) as http, editor(url(http), tools=TOOLS):
        for name, is_listed in (("all", True), ("few", False)):
            listed = (await http.get("/v1/tools", headers={"authorization": f"Bearer {name}-secret"})).json()["data"]
            assert ("get_time" in [one["name"] for one in listed]) is is_listed


async def test_when_clauses_read_the_context_keys_of_the_window(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "from toolgate.lm import tool\n\n\n"
        '@tool(when="editorLangId == python")\n'
        "def lint() -> str:\n    'Lint it.'\n    return 'ok'\n"
    )
    from toolgate.config.settings import ServerToolSettings

    async with gateway(tools=ServerToolSettings(python=(str(tmp_path),))) as http, editor(url(http)) as window:
        await ask(http, "openai_chat", "gpt-4o", False, use_server_tools=["lint"])
        await window.focus(context={"editorLangId": "python"})
        await ask(http, "openai_chat", "gpt-4o", False, use_server_tools=["lint"])
    assert [[one["name"] for one in asked["tools"]] for asked in window.all("ask")] == [[], ["lint"]]


async def test_more_tools_than_a_model_takes_are_grouped(http: httpx.AsyncClient) -> None:
    many = [lent(f"tool_{number}") for number in range(300)]
    async with editor(url(http), tools=many) as window:
        assert (await ask(http, "openai_chat", "gpt-4o", False, **AUTO)).status == 200
    assert 0 < len(window.all("ask")[0]["tools"]) <= 128


async def test_an_editor_that_lends_other_tools_all_the_time_does_not_hide_those_of_another(
    http: httpx.AsyncClient,
) -> None:
    """Many new tools are checked before they are listed; what is lent meanwhile is listed after that."""
    kinds = [[{**lent(f"tool_{number}"), "description": kind} for number in range(1000)] for kind in "ab"]
    begun = asyncio.Event()

    async def lend_without_end(window: ScriptedEditor) -> None:
        for tools in cycle(kinds):
            await window.lend(tools=tools)
            begun.set()

    async with editor(url(http)) as restless, editor(url(http)) as other:
        lending = asyncio.ensure_future(lend_without_end(restless))
        async with asyncio.timeout(GUARD):
            await begun.wait()
            await other.lend(tools=TOOLS)
            while not (await http.get("/v1/tools?name=get_weather")).json()["data"]:
                pass
        lending.cancel()
