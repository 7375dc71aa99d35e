"""Tools whose owner runs them elsewhere: what is posted there and what may come back (spec: R2, R3; fault: S1, T3, T11)."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.tools.invoke import invocation_of, run, run_text
from tests.upstreams.transport.faulty import Faulty, Peer, answering, whole
from toolgate.conversation.message import Media, Text
from toolgate.tools.egress import EgressNoResponse, EgressRefused
from toolgate.tools.egress.pinned_transport import guarded_http
from toolgate.tools.sources.callback import MAX_PARTS, CallbackTool, signature
from toolgate.tools.tool import ServerToolDefinition

SPEC = ServerToolDefinition(
    name="weather", description="Tells the weather.", source="api", input_schema={"type": "object"}
)
JSON = "content-type: application/json"
DEEP = "[" * 512 + "]" * 512  # the most levels that are decoded


def tool_at(url: str, **options: Any) -> CallbackTool:
    return CallbackTool(SPEC, url, {"X-Key": "owner's"}, guarded_http(["127.0.0.1"]), now=lambda: 1000.0, **options)


@pytest.mark.parametrize(
    "item", [b"{}", b'""', b"1", b'{"type":"text","text":""}'], ids=["object", "text", "number", "part"]
)
async def test_an_answer_of_very_many_values_holds_up_no_other_request(item: bytes) -> None:
    """690,000 parts in two megabytes took a second of the event loop."""
    body = b'{"content":[%b]}' % b",".join([item] * (2_000_000 // (len(item) + 1)))
    async with Faulty(answering(whole(body, JSON))) as server:
        began = time.thread_time()
        output = await run(tool_at(server.url))
        assert time.thread_time() - began < 0.2
    assert output.content == (Text(body.decode()),)
    assert output.structured is None


async def test_an_answer_of_many_parts_is_passed_on_as_it_is() -> None:
    bodies = [b'{"content":[%b]}' % b",".join([b'"a"'] * parts) for parts in (MAX_PARTS, MAX_PARTS + 1)]
    async with Faulty(answering(*[whole(body, JSON) for body in bodies])) as server:
        assert len((await run(tool_at(server.url))).content) == MAX_PARTS
        assert (await run(tool_at(server.url))).content == (Text(bodies[1].decode()),)


async def test_a_call_is_posted_with_its_id_and_its_key() -> None:
    async with Faulty(answering(whole(b"sunny"))) as server:
        assert await run_text(tool_at(server.url), city="Ulm") == "sunny"
    (request,) = server.requests
    assert request.method == "POST"
    assert msgspec.json.decode(request.body) == {
        "call_id": "call_1",
        "name": "weather",
        "arguments": {"city": "Ulm"},
        "caller": "caller",
    }
    assert request.headers["idempotency-key"] == "key_1"
    assert request.headers["x-key"] == "owner's"
    assert "x-toolgate-signature" not in request.headers


async def test_with_a_secret_the_owner_can_verify_sender_and_time() -> None:
    async with Faulty(answering(whole(b"sunny"))) as server:
        await run(tool_at(server.url, secret="canary"))
    (request,) = server.requests
    assert request.headers["x-toolgate-signature"] == signature("canary", 1000, request.body)
    assert signature("canary", 1000, b"{}") == (
        "t=1000,v1=425f2cdf1b33393a7a6e5917ce4ad36bebe3f342ef3cc18caea3dbc0ee0bd29a"
    )
    assert "canary" not in str(request)


ANSWERS: list[tuple[bytes, tuple[Text | Media, ...], bool, Any]] = [
    (b'{"content": "sunny"}', (Text("sunny"),), False, None),
    (b'{"content": "broken", "is_error": true}', (Text("broken"),), True, None),
    (b'{"text": "sunny", "structured": {"sky": 1}}', (Text("sunny"),), False, {"sky": 1}),
    (
        b'{"content": ["a", {"type": "text", "text": "b"}, {"type": "image", "data": "aGk=", "mime_type": "image/png"}]}',
        (Text("a"), Text("b"), Media("image", "image/png", data="aGk=")),
        False,
        None,
    ),
    (b'{"content": [{"type": "image", "data": "?"}]}', (Text('{"type":"image","data":"?"}'),), False, None),
    (b'{"content": [7]}', (Text("7"),), False, None),
    (b'{"is_error": "yes", "content": ""}', (Text(""),), False, None),
    (b'{"sky": "blue"}', (Text('{"sky": "blue"}'),), False, {"sky": "blue"}),
    (b"[1, 2]", (Text("[1, 2]"),), False, [1, 2]),
    (b"not json", (Text("not json"),), False, None),
    (b"NaN", (Text("NaN"),), False, None),
    (b'"\xff"', (Text('"\ufffd"'),), False, None),
    (DEEP.encode(), (Text(DEEP),), False, msgspec.json.decode(DEEP)),
    (f"[{DEEP}]".encode(), (Text(f"[{DEEP}]"),), False, None),
    (b'{"content": [%b]}' % DEEP.encode(), (Text(f'{{"content": [{DEEP}]}}'),), False, None),
]


@pytest.mark.parametrize(("body", "content", "is_error", "structured"), ANSWERS, ids=range(len(ANSWERS)))
async def test_an_answer_is_read_as_what_it_is(
    body: bytes, content: tuple[Text | Media, ...], is_error: bool, structured: Any
) -> None:
    """fault: T3"""
    async with Faulty(answering(whole(body, JSON))) as server:
        output = await run(tool_at(server.url))
    assert (output.content, output.is_error, output.structured) == (content, is_error, structured)


async def test_a_status_that_is_no_success_is_an_error() -> None:
    async with Faulty(answering(whole(b'{"content": "fine"}', JSON, status="500 Oops"))) as server:
        output = await run(tool_at(server.url))
    assert output.is_error
    assert output.content == (Text('HTTP 500\n{"content": "fine"}'),)


async def test_no_redirect_is_followed() -> None:
    """fault: T11"""
    async with Faulty(answering(whole(b"there"))) as other:
        away = whole(b"", f"location: {other.url}", status="303 See Other")
        async with Faulty(answering(away)) as server:
            output = await run(tool_at(server.url))
    assert output.is_error
    assert other.requests == []


async def test_a_failed_call_is_not_repeated_by_itself() -> None:
    async def closing(peer: Peer) -> None:
        await peer.request()

    async with Faulty(closing) as server:
        with pytest.raises(EgressNoResponse):
            await run(tool_at(server.url))
    assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://me:pw@example.org/", "http://127.1/", "example.org"])
def test_an_address_that_could_never_be_called_is_refused_at_once(url: str) -> None:
    """fault: S1"""
    with pytest.raises(EgressRefused):
        tool_at(url)


async def test_an_address_on_the_inside_is_refused_at_the_call() -> None:
    """fault: S1"""
    async with Faulty(answering(whole(b"reached"))) as inside:
        tool = CallbackTool(SPEC, inside.url, {}, guarded_http())
        with pytest.raises(EgressRefused, match="private"):
            await run(tool)
    assert inside.peers == []


async def test_cancelling_the_call_closes_its_connection() -> None:
    arrived = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.gone()

    async with Faulty(silent) as server:
        running = asyncio.ensure_future(run(tool_at(server.url)))
        await asyncio.wait_for(arrived.wait(), 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(server.peers[0].left.wait(), 30)


async def test_the_preparation_names_the_host_that_runs_the_call() -> None:
    tool = tool_at("https://tools.example/hook?token=canary")
    assert (await tool.prepare(invocation_of(tool))).message == "Call weather at tools.example"
