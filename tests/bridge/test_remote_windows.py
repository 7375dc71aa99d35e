"""Windows that another worker or another node has: listed and asked as if they were its own (spec: V1)."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.app.nodes import running_redis
from tests.bridge.gateway import WEATHER, ask, gateway
from tests.bridge.scripted_editor import (
    GPT,
    GUARD,
    Frame,
    ScriptedEditor,
    call,
    delta,
    done,
    editor,
    failure,
    replies,
    text,
)
from tests.workers.server_process import RunningServer, running_server, until
from toolgate.config import VSCODE, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import VscodeSettings

TOOLS = [{"name": "get_weather", "description": "", "input_schema": WEATHER, "tags": ["vscode_web"]}]


def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url)


@asynccontextmanager
async def two_nodes(tmp_path: Path, **settings: object) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        redis = Secret(stack.enter_context(running_redis(tmp_path)).url)
        near = await stack.enter_async_context(gateway(redis=redis, **settings))
        far = await stack.enter_async_context(gateway(redis=redis, **settings))
        yield near, far


async def lists(http: httpx.AsyncClient, name: str, listed: bool = True) -> None:
    """Wait until a node lists a model, or does not any more."""
    async with asyncio.timeout(GUARD):
        while (name in (await http.get("/v1/models")).text) is not listed:
            await asyncio.to_thread(time.sleep, 0.02)  # another process changes it


async def test_a_node_asks_the_window_of_another(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (near, far), editor(url(near), tools=TOOLS) as window:
        await lists(far, "vscode/copilot/gpt-4o")
        for client in CLIENTS:
            for stream in (False, True):
                assert (await ask(far, client, "gpt-4o", stream, "Hello")).text == "You said: Hello"
        listed = (await far.get("/v1/tools?tags=vscode_web")).json()["data"]
        assert [one["name"] for one in listed] == ["get_weather"]
        assert (await far.get("/v1/bridge")).json()["data"][0]["id"] == window.window["id"]
        count = await far.post("/v1/messages/count_tokens", json=body("anthropic", "gpt-4o", False, "five!"))
        assert count.json()["input_tokens"] >= 5


async def test_tools_of_a_window_of_another_node_run(tmp_path: Path) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["type"] == "invoke":
            yield done(parts=text(f"Rain in {asked['input']['city']}"))
        elif len(window.all("ask")) == 1:
            yield delta(call("get_weather", {"city": "Oslo"}))
            yield done()
        else:
            yield delta(*text("Done"))
            yield done()

    async with two_nodes(tmp_path) as (near, far), editor(url(near), tools=TOOLS, script=script) as window:
        await lists(far, "gpt-4o")
        answer = await ask(far, "openai_chat", "gpt-4o", False, use_vscode_tools=True, tool_execution="auto")
        assert answer.text == "Done"
        assert window.all("invoke")[0]["input"] == {"city": "Oslo"}


async def test_a_client_that_leaves_another_node_cancels_the_question(tmp_path: Path) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once"))
        await asyncio.Event().wait()

    async with two_nodes(tmp_path) as (near, far), editor(url(near), script=script) as window:
        await lists(far, "gpt-4o")
        async with HttpConnection(url(far)) as caller:
            await caller.post("/v1/chat/completions", body("openai_chat", "gpt-4o", True))
            await caller.head()
        await window.received("cancel", id=(await window.received("ask"))["id"])


@pytest.mark.parametrize("code", ["quota", "too_long", "no_permission"])
async def test_failures_reach_another_node_as_they_are(tmp_path: Path, code: str) -> None:
    async with two_nodes(tmp_path) as (near, far), editor(url(near), script=replies(failure(code))):
        await lists(far, "gpt-4o")
        here = await ask(near, "openai_chat", "gpt-4o", False)
        there = await ask(far, "openai_chat", "gpt-4o", False)
        assert (there.status, there.raw) == (here.status, here.raw)


async def test_a_frame_that_is_long_to_decode_is_not_passed_on_to_another_node(tmp_path: Path) -> None:
    script = replies(delta({"type": "data", "mime": "x" * 9 * 2**20, "data": ""}), done())
    async with two_nodes(tmp_path) as (near, far), editor(url(near), script=script) as window:
        await lists(far, "gpt-4o")
        answer = await ask(far, "openai_chat", "gpt-4o", False)
        assert answer.status == 502
        assert "sent a frame of more than 8 MiB" in answer.raw
        await window.received("cancel", id=(await window.received("ask"))["id"])


async def test_a_window_that_leaves_is_gone_on_every_node(tmp_path: Path) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once"))
        window.kill()

    async with two_nodes(tmp_path) as (near, far), editor(url(near), script=script):
        await lists(far, "gpt-4o")
        answer = await ask(far, "openai_chat", "gpt-4o", True)
        assert answer.text == "Once"
        assert "in mid-answer" in answer.raw
        await lists(far, "gpt-4o", listed=False)


async def test_a_full_window_refuses_the_questions_of_other_nodes_too(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        await goes_on.wait()
        yield delta(*text("Hello"))
        yield done()

    settings = {"vscode": VscodeSettings(concurrency=1)}
    async with two_nodes(tmp_path, **settings) as (near, far), editor(url(near), script=script) as window:
        await lists(far, "gpt-4o")
        asking = [asyncio.ensure_future(ask(http, "openai_chat", "gpt-4o", False)) for http in (near, far)]
        await window.received("ask")
        await window.round_trip()
        assert len(window.all("ask")) == 1
        goes_on.set()
        assert [one.status for one in await asyncio.gather(*asking)] == [200, 200]


async def test_a_window_that_connects_to_another_node_leaves_the_first(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (near, far), editor(url(near), id="same") as earlier:
        await lists(far, "gpt-4o")
        async with editor(url(far), id="same") as later:
            assert await earlier.closed() == 4409
            await lists(near, "gpt-4o")
            assert (await ask(near, "openai_chat", "gpt-4o", False)).status == 200
            assert len(later.all("ask")) == 1


async def test_a_node_that_starts_later_learns_of_windows(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        redis = Secret(server.url)
        async with gateway(redis=redis) as near, editor(url(near)), gateway(redis=redis) as late:
            await lists(late, "gpt-4o")


async def test_the_death_of_a_node_is_noticed_and_its_window_joins_another(tmp_path: Path) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once"))
        await asyncio.Event().wait()

    mine = ModelConfig(name="mine", targets=(TargetConfig(upstream=VSCODE, model="gpt-4o"),))
    with running_redis(tmp_path) as redis, running_server(tmp_path, f"redis: {redis.url}\n") as node:
        await asyncio.to_thread(node.announced)
        async with gateway(redis=Secret(redis.url), models=(mine,)) as far:
            async with editor(node.url, id="same", script=script) as window:
                await lists(far, "gpt-4o")
                async with far.stream("POST", PATHS["openai_chat"], json=body("openai_chat", "mine", True)) as answer:
                    lines = answer.aiter_lines()
                    while "Once" not in await anext(lines):
                        pass
                    node.process.kill()
                    assert "in mid-answer" in "".join([line async for line in lines])
                await window.closed()
            refused = await ask(far, "openai_chat", "mine", False)
            assert (refused.status, "no_editor" in refused.raw) == (503, True)
            await lists(far, "gpt-4o", listed=False)
            async with editor(url(far), id="same"):
                assert (await ask(far, "openai_chat", "mine", False)).text == "You said: Hi"


def test_the_windows_and_questions_of_killed_workers_are_gone(tmp_path: Path) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once"))
        await asyncio.Event().wait()

    async def play(server: RunningServer) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http,
            editor(server.url, script=script) as window,
        ):
            for _ in range(8):
                await lists(http, "gpt-4o")
            asking = [asyncio.ensure_future(ask(http, "openai_chat", "gpt-4o", True)) for _ in range(8)]
            while len(window.all("ask")) < 8:
                await window.round_trip()
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            await window.closed()
            await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.to_thread(until, lambda: len(server.workers()) == 2)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            await lists(http, "gpt-4o", listed=False)
            async with editor(server.url):
                for _ in range(8):
                    await lists(http, "gpt-4o")

    with running_server(tmp_path, "log: {level: error}\n", "--workers", "2") as server:
        asyncio.run(play(server.announced()))


def test_every_worker_reaches_a_window_of_one_of_them(tmp_path: Path) -> None:
    async def play(server_url: str) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # a connection for each request: both workers are asked
        async with (
            httpx.AsyncClient(base_url=server_url, timeout=60, limits=limits) as http,
            editor(server_url, models=[GPT], tools=TOOLS) as window,
        ):
            for _ in range(8):
                await lists(http, "gpt-4o")
            answers = [
                await ask(http, CLIENTS[number % 4], "gpt-4o", number % 2 == 0, "Hello", tools=[])
                for number in range(16)
            ]
            assert {one.text for one in answers} == {"You said: Hello"}
            assert (
                len({frame["id"].rpartition("-")[0] or frame["id"].partition("_")[0] for frame in window.all("ask")})
                == 2
            )
        for _ in range(8):
            async with httpx.AsyncClient(base_url=server_url) as http:
                await lists(http, "gpt-4o", listed=False)

    with running_server(tmp_path, "log: {level: error}\n", "--workers", "2") as server:
        asyncio.run(play(server.announced().url))


def test_half_a_surrogate_pair_of_an_editor_reaches_every_worker(tmp_path: Path) -> None:
    script = replies(delta(*text("Rain \ud83c")), done(usage={"input": 7, "output": 5}))

    async def play(server_url: str) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # a connection for each request: both workers are asked
        async with (
            httpx.AsyncClient(base_url=server_url, timeout=60, limits=limits) as http,
            editor(server_url, script=script) as window,
        ):
            for _ in range(8):
                await lists(http, "gpt-4o")
            while {"-" in frame["id"] for frame in window.all("ask")} != {True, False}:
                assert (await ask(http, "openai_chat", "gpt-4o", False)).text == "Rain \ufffd"
            # The worker that has the window is still connected to its supervisor, which sums up the metrics of both.
            assert "toolgate_workers 2" in (await http.get("/metrics")).text

    with running_server(tmp_path, "log: {level: error}\n", "--workers", "2") as server:
        asyncio.run(play(server.announced().url))
