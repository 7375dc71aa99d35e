"""/v1/conversations over bare sockets: bounds, complaints, locks and strangers (spec: C3)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.api.responses.stateful import Stateful, stateful
from tests.stage import gateway_config
from tests.upstreams.transport.faulty import Faulty, Peer, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.message import ToolResult, plain_text
from toolgate.http.listener import listening


@pytest.fixture
async def server() -> AsyncIterator[Stateful]:
    async with stateful() as server:
        yield server


def output(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


async def made(server: Stateful, *items: Any) -> str:
    received = await server.request("POST", "/v1/conversations", {"items": list(items)})
    assert received.status == 200, received.body
    return str(received.json["id"])


async def texts(server: Stateful, id: str) -> list[str]:
    received = await server.request("GET", f"/v1/conversations/{id}/items?order=asc&limit=100")
    return [item["content"][0]["text"] if item["type"] == "message" else item["type"] for item in received.json["data"]]


async def test_a_conversation_needs_no_body(server: Stateful) -> None:
    received = await server.request("POST", "/v1/conversations")
    assert (received.status, received.json["object"], received.json["metadata"]) == (200, "conversation", {})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": "hello"}, "items"),
        ({"items": [output("x")] * 21}, "items"),
        ({"items": [output("x"), {"type": "message", "role": "nobody", "content": "x"}]}, "items[1].role"),
        ({"items": [{"type": "item_reference", "id": "msg_unknown"}]}, "items[0]"),
        ({"items": [7]}, "items[0]"),
        ({"items": [output("x"), {**output("y"), "id": "msg_" + "a" * 509}]}, "items[1].id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: "1"}}, "metadata." + "a" * 64),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"metadata": {str(n): "b" for n in range(17)}}, "metadata"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(server: Stateful, body: Any, param: str) -> None:
    received = await server.request("POST", "/v1/conversations", body)
    assert (received.status, received.json["error"]["param"]) == (400, param), received.body


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_unknown"])
async def test_an_impossible_page_is_refused(server: Stateful, query: str) -> None:
    id = await made(server, output("a"))
    received = await server.request("GET", f"/v1/conversations/{id}/items?{query}")
    assert (received.status, received.json["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_call_and_its_result_may_be_added_one_after_the_other(server: Stateful) -> None:
    scripted = server.play("Sunny.")
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    id = await made(server, output("Look."), call)
    result = {"type": "function_call_output", "call_id": "call_1", "output": "sun"}
    received = await server.request("POST", f"/v1/conversations/{id}/items", {"items": [result]})
    assert received.json["data"][0]["id"].startswith("fco_")
    received = await server.request("POST", "/v1/responses", {"model": "m", "input": "So?", "conversation": id})
    assert received.status == 200, received.body
    parts = [part for message in scripted.requests[0].messages for part in message.parts]
    assert [plain_text(part.content) for part in parts if isinstance(part, ToolResult)] == ["sun"]
    assert await texts(server, id) == ["Look.", "function_call", "function_call_output", "So?", "Sunny."]


async def test_a_conversation_and_a_previous_response_exclude_each_other(server: Stateful) -> None:
    body = {"model": "m", "input": "Hi", "conversation": "conv_x", "previous_response_id": "resp_x"}
    received = await server.request("POST", "/v1/responses", body)
    assert (received.status, received.json["error"]["code"]) == (400, "mutually_exclusive_parameters")


@pytest.mark.parametrize("conversation", ["", 7, {}, {"id": 7}, []])
async def test_a_conversation_that_is_no_name_is_refused(server: Stateful, conversation: Any) -> None:
    received = await server.request(
        "POST", "/v1/responses", {"model": "m", "input": "Hi", "conversation": conversation}
    )
    assert (received.status, received.json["error"]["param"]) == (400, "conversation")


@pytest.mark.parametrize("background", [False, True])
async def test_two_responses_at_once_in_one_conversation_are_one_too_many(server: Stateful, background: bool) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> str:
        asked.set()
        await go.wait()
        return "First."

    server.play(wait, "Second.")
    id = await made(server)
    body = {"model": "m", "input": "One", "conversation": {"id": id}, "background": background}
    async with server.asking("POST", "/v1/responses", body) as first:
        await asked.wait()
        other = {"model": "m", "input": "Two", "conversation": id}
        second = await server.request("POST", "/v1/responses", other)
        assert (second.status, second.json["error"]["code"]) == (409, "conversation_locked")
        added = await server.request("POST", f"/v1/conversations/{id}/items", {"items": [output("Three")]})
        assert added.status == 409
        go.set()
        answered = (await first.response()).json["id"]
    await server.ended(answered)
    assert (await server.request("POST", "/v1/responses", other)).status == 200
    assert await texts(server, id) == ["One", "First.", "Two", "Second."]


async def test_a_failed_response_adds_nothing_and_frees_the_conversation(server: Stateful) -> None:
    server.play(RuntimeError("a defect"), "Better.")
    id = await made(server, output("Hi"))
    body = {"model": "m", "input": "Go", "conversation": id}
    assert (await server.request("POST", "/v1/responses", body)).status == 500
    assert await texts(server, id) == ["Hi"]
    assert (await server.request("POST", "/v1/responses", body)).status == 200
    assert await texts(server, id) == ["Hi", "Go", "Better."]


@pytest.mark.parametrize("wrong", [{"store": False}, {"stream": "yes"}, {"tools": 5}])
async def test_a_refused_background_response_frees_the_conversation(server: Stateful, wrong: dict[str, Any]) -> None:
    """It stayed locked until the server ended: its lease was renewed, so that no other node could use it either."""
    server.play("Well.")
    id = await made(server)
    body = {"model": "m", "input": "One", "conversation": id}
    refused = await server.request("POST", "/v1/responses", {**body, "background": True, **wrong})
    assert refused.status == 400
    assert (await server.request("POST", "/v1/responses", body)).status == 200
    assert await texts(server, id) == ["One", "Well."]


async def test_an_unstored_response_adds_to_its_conversation_all_the_same(server: Stateful) -> None:
    server.play("Hello.")
    id = await made(server)
    body = {"model": "m", "input": "Hi", "conversation": id, "store": False}
    received = await server.request("POST", "/v1/responses", body)
    assert (await server.request("GET", f"/v1/responses/{received.json['id']}")).status == 404
    assert await texts(server, id) == ["Hi", "Hello."]


async def test_a_response_of_a_conversation_is_continued_with_all_that_came_before_it(server: Stateful) -> None:
    scripted = server.play("One.", "Two.", "Other.")
    id = await made(server, output("Hi"))
    first, _ = [
        (await server.request("POST", "/v1/responses", {"model": "m", "input": text, "conversation": id})).json
        for text in ("First", "Second")
    ]
    body = {"model": "m", "input": "Else", "previous_response_id": first["id"]}
    assert (await server.request("POST", "/v1/responses", body)).status == 200
    assert [plain_text(message.parts) for message in scripted.requests[-1].messages] == ["Hi", "First", "One.", "Else"]
    assert await texts(server, id) == ["Hi", "First", "One.", "Second", "Two."]
    await server.request("DELETE", f"/v1/conversations/{id}")
    gone = await server.request("POST", "/v1/responses", body)
    assert (gone.status, gone.json["error"]["code"]) == (400, "previous_response_not_found")


async def test_an_upstream_that_repeats_the_ids_of_its_items_loses_none_of_them() -> None:
    """An item that was appended took the place of an earlier one with its id, which was lost."""

    async def answer(peer: Peer) -> None:
        number = 0
        while await peer.request() is not None:
            number += 1
            texts = (f"Well {number}", f"So {number}")
            items = [{"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": t}]} for t in texts]
            await peer.send(whole(json.dumps({"id": "resp_1", "status": "completed", "output": items}).encode()))

    async with Faulty(answer) as upstream, listening(Toolgate(gateway_config(f"http://{upstream.name}"))) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            id = (await client.conversations.create()).id
            for question in ("One?", "Two?"):
                made = await client.responses.create(model="openai_responses", input=question, conversation=id)
            items = [item async for item in client.conversations.items.list(id, order="asc")]
            assert len({item.id for item in items}) == len(items)
            texts = [item.content[0].text for item in items]  # type: ignore[union-attr,index]  # all are messages
            assert texts == ["One?", "Well 1", "So 1", "Two?", "Well 2", "So 2"]
            # The last one is found at its place in the conversation, and continued with all that comes before it.
            await client.responses.create(model="openai_responses", input="Three?", previous_response_id=made.id)
        places = [upstream.requests[-1].body.find(f'"{text}"'.encode()) for text in (*texts, "Three?")]
        assert [-1, *places] == sorted({-1, *places})


async def test_strangers_are_reported_that_nothing_is_there(server: Stateful) -> None:
    """fault: Z2"""
    id = await made(server, output("secret"))
    item = (await server.request("GET", f"/v1/conversations/{id}/items")).json["data"][0]["id"]
    tries: list[tuple[str, str, Any]] = [
        ("GET", f"/v1/conversations/{id}", None),
        ("POST", f"/v1/conversations/{id}", {"metadata": {}}),
        ("DELETE", f"/v1/conversations/{id}", None),
        ("GET", f"/v1/conversations/{id}/items", None),
        ("POST", f"/v1/conversations/{id}/items", {"items": [output("mine")]}),
        ("GET", f"/v1/conversations/{id}/items/{item}", None),
        ("DELETE", f"/v1/conversations/{id}/items/{item}", None),
        ("POST", "/v1/responses", {"model": "m", "input": "Hi", "conversation": id}),
    ]
    for method, path, body in tries:
        theirs = await server.request(method, path, body, who="bob")
        absent = await server.request(
            method,
            path.replace(id, "conv_absent"),
            {**body, "conversation": "conv_absent"} if body and "conversation" in body else body,
            who="bob",
        )
        assert theirs.status == absent.status == 404, (method, path, theirs.body)
        assert theirs.json["error"]["code"] == absent.json["error"]["code"]
    own = (await server.request("POST", "/v1/conversations", {}, who="bob")).json["id"]
    named = {"items": [{"type": "item_reference", "id": item}]}
    assert (await server.request("POST", f"/v1/conversations/{own}/items", named, who="bob")).status == 400
    assert await texts(server, id) == ["secret"]


async def test_references_are_added_to_a_conversation_that_is_there(server: Stateful) -> None:
    """A new one would copy megabytes for a request of a few bytes, and send none of them."""
    one = await made(server, output("kept"))
    [item] = (await server.request("GET", f"/v1/conversations/{one}/items")).json["data"]
    named = {"items": [{"type": "item_reference", "id": item["id"]}]}
    refused = await server.request("POST", "/v1/conversations", named)
    assert (refused.status, refused.json["error"]["param"]) == (400, "items[0]")
    other = await made(server)
    assert (await server.request("POST", f"/v1/conversations/{other}/items", named)).status == 200
    assert await texts(server, other) == ["kept"]
