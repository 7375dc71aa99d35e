"""Faults of upstreams and clients, over real sockets: each is passed on correctly and at once."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, HttpResponse, ask, body
from tests.dialects.chat_quirks import HELLO, ROLE, STOP, sse
from tests.stage import MEMORY, QUIET
from tests.upstreams.transport.faulty import Faulty, Peer, Script, answering, chunk, chunked, head, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import BreakerSettings, ServerSettings, TimeoutSettings
from toolgate.http.listener import listening

EVENTS = "content-type: text/event-stream"
GOOD_STREAM = chunked(sse(ROLE, HELLO, STOP))
GOOD_WHOLE = whole(
    json.dumps(
        {
            "id": "x",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        }
    ).encode()
)
every_client = pytest.mark.parametrize("client", CLIENTS)


@asynccontextmanager
async def gateway(
    *scripts: Script, timeouts: TimeoutSettings | None = None, retries: int = 0, failures: int = 0, **server: Any
) -> AsyncGenerator[tuple[str, list[Faulty]]]:
    """A gateway whose model `m` falls back over Chat upstreams that play these scripts."""
    faulty = [Faulty(script) for script in scripts]
    for one in faulty:
        await one.__aenter__()
    upstreams = {
        f"u{number}": UpstreamConfig(
            name=f"u{number}",
            dialect="openai_chat",
            base_url=f"http://127.0.0.1:{one.port}/v1",
            timeouts=timeouts or TimeoutSettings(),
            breaker=BreakerSettings(failures=failures),
        )
        for number, one in enumerate(faulty)
    }
    models = [
        ModelConfig(name=name, targets=(TargetConfig(upstream=name, model="up"),), retries=retries)
        for name in upstreams
    ]
    first = ModelConfig(name="m", targets=models[0].targets, retries=retries, fallbacks=tuple(upstreams)[1:])
    settings = ServerSettings(port=0, **server)
    config = Config(server=settings, upstreams=upstreams, models=(first, *models), storage=MEMORY, log=QUIET)
    async with listening(Toolgate(config)) as url:
        yield url, faulty
    for one in faulty:
        await one.__aexit__(None, None, None)


def failed(client: str, received: HttpResponse) -> str:
    """The message of a failure told inside a stream; the stream must not look complete."""
    text = received.body.decode()
    assert received.status == 200
    assert not received.cut
    match client:
        case "openai_chat":
            assert '"finish_reason":"stop"' not in text
            assert text.endswith("data: [DONE]\n\n")
            error = [line for line in text.split("\n\n") if line.startswith('data: {"error"')][-1]
            return str(json.loads(error.removeprefix("data: "))["error"]["message"])
        case "openai_responses":
            assert "response.completed" not in text
            assert "event: response.failed" in text or "event: error" in text
        case "anthropic":
            assert "message_stop" not in text
            assert "event: error" in text
        case _:
            assert '"done":true' not in text
            return str(json.loads(text.strip().split("\n")[-1])["error"])
    return text


async def hold_before_answer(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def hold_in_stream(peer: Peer) -> None:
    await peer.request()
    await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(sse(ROLE, HELLO, done=False)))
    await peer.gone()


@every_client
@pytest.mark.parametrize("phase", ["whole", "before the first byte", "streaming"])
async def test_when_the_client_disconnects_the_upstream_is_disconnected(client: str, phase: str) -> None:
    """fault: C1, U11; field: G1"""
    script = hold_in_stream if phase == "streaming" else hold_before_answer
    async with gateway(script) as (url, (upstream,)), HttpConnection(url) as caller:
        await caller.post(PATHS[client], body(client, "m", stream=phase != "whole"))
        if phase == "streaming":
            await caller.head()
            await caller.chunk()
        while not upstream.requests:  # noqa: ASYNC110  # the upstream only keeps a list
            await asyncio.sleep(0.01)
        caller.abort()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


async def test_when_the_client_disconnects_after_a_large_request_the_upstream_is_disconnected() -> None:
    """fault: C1; all of the request may be here before anybody asks for it, and reading paused"""
    large = body("openai_chat", "m", stream=False, text="x" * 120_000)
    async with gateway(hold_before_answer) as (url, (upstream,)), HttpConnection(url) as caller:
        await caller.post(PATHS["openai_chat"], large)
        while not upstream.requests:  # noqa: ASYNC110  # the upstream only keeps a list
            await asyncio.sleep(0.01)
        caller.abort()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@every_client
async def test_a_slow_first_byte_is_bridged_by_a_comment(client: str) -> None:
    """fault: U3; field: G4"""
    release = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        await release.wait()
        await peer.send(GOOD_STREAM)

    async with gateway(slow, first_event_wait=0.05, keepalive_seconds=0.1) as (url, _), HttpConnection(url) as caller:
        await caller.post(PATHS[client], body(client, "m", stream=True))
        status, _ = await caller.head()
        assert status == 200
        if client != "ollama":
            assert [await caller.chunk(), await caller.chunk()] == [b": ping\n", b": ping\n"]
        release.set()
        text = b""
        while piece := await caller.chunk():
            text += piece
        assert b"Hello" in text


@every_client
async def test_an_upstream_that_never_answers_is_a_504(client: str) -> None:
    """fault: U3"""
    async with gateway(hold_before_answer, timeouts=TimeoutSettings(first_byte=0.1)) as (url, _):
        for stream in (True, False):
            received = await ask(url, PATHS[client], body(client, "m", stream))
            assert received.status == 504


@every_client
async def test_a_stream_that_falls_silent_fails_in_the_stream(client: str) -> None:
    """fault: U4"""
    async with gateway(hold_in_stream, timeouts=TimeoutSettings(idle=0.1)) as (url, _):
        assert "idle" in failed(client, await ask(url, PATHS[client], body(client, "m", stream=True)))


@every_client
@pytest.mark.parametrize("ending", ["fin", "reset", "no finish", "half a chunk"])
async def test_a_stream_that_is_cut_off_never_ends_as_success(client: str, ending: str) -> None:
    """fault: U5; field: A27; quirk: eof_before_finish, cut_mid_json"""

    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(sse(ROLE, HELLO, done=False)))
        await asyncio.sleep(0.02)
        match ending:
            case "no finish":
                await peer.send(chunk(b""))
            case "half a chunk":
                await peer.send(b"40\r\ndata: {")
            case "reset":
                peer.reset()

    async with gateway(cut) as (url, _):
        failed(client, await ask(url, PATHS[client], body(client, "m", stream=True)))


NOT_ANSWERS = {
    "html_200": whole(b"<html><body>Log in to the Wi-Fi</body></html>", "content-type: text/html"),
    "error_json_200": whole(
        b'{"error":{"message":"quota is used up","code":"quota"}}', "content-type: application/json"
    ),
    "error_first": chunked(b'data: {"error":{"message":"quota is used up"}}\n\n'),
    "garbage": chunked(b"\x00\x01\x02garbage\xff\n\n"),
    "not_json": chunked(b"data: {oops\n\n"),
    "nothing": chunked(),
    "500 as events": whole(b'data: {"error":"boom"}\n\n', EVENTS, status="500 Internal Server Error"),
}


@every_client
@pytest.mark.parametrize("answer", NOT_ANSWERS.values(), ids=[f"quirk: {name}" for name in NOT_ANSWERS])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_invalid_answer_is_a_clear_error_before_the_first_byte(
    client: str, answer: bytes, stream: bool
) -> None:
    """fault: U8; field: A30, G6"""
    async with gateway(answering(answer)) as (url, _):
        received = await ask(url, PATHS[client], body(client, "m", stream))
        assert received.status in (502, 503)
        assert "error" in received.json


async def test_a_stream_with_an_odd_content_type_or_compression_is_read_all_the_same() -> None:
    """quirk: json_ctype; field: A30"""
    stream = sse(ROLE, HELLO, STOP)
    odd = head("transfer-encoding: chunked", "content-type: application/json") + chunk(stream) + chunk(b"")
    packed = whole(gzip.compress(stream), EVENTS, "content-encoding: gzip")
    for answer in (odd, packed):
        async with gateway(answering(answer)) as (url, _):
            received = await ask(url, PATHS["anthropic"], body("anthropic", "m", stream=True))
            assert b"Hello" in received.body
            assert b"message_stop" in received.body


@every_client
async def test_a_stream_that_answers_a_request_for_a_whole_answer_is_read(client: str) -> None:
    stream = sse(ROLE, HELLO, STOP)
    for answer in (chunked(stream), whole(b": hello\n\n" + stream, EVENTS)):
        async with gateway(answering(answer)) as (url, _):
            received = await ask(url, PATHS[client], body(client, "m", stream=False))
        assert received.status == 200
        assert "Hello" in str(received.json)


@every_client
@pytest.mark.parametrize("stream", [sse(ROLE, HELLO), sse(ROLE, HELLO) + b'data: {"error":"boom"}\n\n'])
async def test_a_broken_stream_that_answers_a_request_for_a_whole_answer_is_an_error(
    client: str, stream: bytes
) -> None:
    async with gateway(answering(chunked(stream))) as (url, _):
        received = await ask(url, PATHS[client], body(client, "m", stream=False))
    assert received.status in (502, 503)


def two_choices(*messages: dict[str, Any]) -> bytes:
    """A whole answer that puts each message into a choice of its own."""
    choices = [
        {"index": number, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "tool_calls"}
        for number, message in enumerate(messages)
    ]
    return whole(json.dumps({"id": "x", "choices": choices}).encode())


@every_client
async def test_a_call_in_a_further_choice_reaches_the_client_with_the_text_of_the_first(client: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"city":"Rome"}'}}
    answer = two_choices({"content": "Looking."}, {"tool_calls": [call]})
    async with gateway(answering(answer)) as (url, _):
        received = (await ask(url, PATHS[client], body(client, "m", stream=False))).json
    assert all(piece in str(received) for piece in ("Looking.", "look_up", "Rome"))
    if client == "openai_chat":
        assert [choice["finish_reason"] for choice in received["choices"]] == ["tool_calls"]
        [output] = received["choices"][0]["message"]["tool_calls"]
        assert output["function"] == call["function"]


@every_client
async def test_a_socket_that_stays_open_after_the_end_delays_nothing(client: str) -> None:
    """quirk: linger_after_done"""

    async def linger(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(sse(ROLE, HELLO, STOP)))
        await peer.gone()

    async with gateway(linger) as (url, _):
        received = await asyncio.wait_for(ask(url, PATHS[client], body(client, "m", stream=True)), 30)
        assert not received.cut


@every_client
async def test_single_bytes_give_the_same_answer(client: str) -> None:
    """fault: U10"""

    async def slicer(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS))
        for byte in sse(ROLE, HELLO, STOP):
            await peer.send(chunk(bytes([byte])))
        await peer.send(chunk(b""))

    async with gateway(slicer) as (url, _):
        received = await ask(url, PATHS[client], body(client, "m", stream=True))
        assert b"Hello" in received.body
        assert not received.cut


async def test_an_event_without_end_is_cut_off() -> None:
    """fault: U9"""

    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(b"data: "))
        for _ in range(40):
            await peer.send(chunk(b"x" * 1024 * 1024))

    async with gateway(endless) as (url, _):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=True))
        assert received.status == 502


@every_client
async def test_events_without_content_before_an_answer_are_cut_off(client: str) -> None:
    """All of them were kept in memory: 256 MiB of empty events took more than 2 GiB. (fault: U9)"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), *[chunk(b"event: ping\n\n" * 1_000)] * 200)
        await peer.send(chunk(sse(ROLE, HELLO, STOP)), chunk(b""))

    async with gateway(script) as (url, _):
        refused = await ask(url, PATHS[client], body(client, "m", stream=True))
        assert refused.status == 502
        assert b"too many events without any content" in refused.body


async def test_a_refusal_keeps_its_status_message_and_wait() -> None:
    """fault: U6"""
    busy = whole(b'{"error":{"message":"slow down"}}', "retry-after: 7", status="429 Too Many Requests")
    bad = whole(b'{"error":{"message":"temperature is too high","param":"temperature"}}', status="400 Bad Request")
    secret = whole(b'{"error":{"message":"bad key"}}', status="401 Unauthorized")
    for answer, status in ((busy, 429), (bad, 400), (secret, 502)):
        async with gateway(answering(answer)) as (url, _):
            received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=True))
            assert received.status == status
            if status == 429:
                assert received.headers["retry-after"] == "7"
            if status == 400:
                assert received.json["error"]["param"] == "temperature"


@every_client
async def test_the_header_against_retries_is_set_when_our_key_is_refused(client: str) -> None:
    secret = whole(b'{"error":{"message":"bad key"}}', status="401 Unauthorized")
    async with gateway(answering(secret)) as (url, _):
        received = await ask(url, PATHS[client], body(client, "m", stream=True))
        assert (received.status, received.headers["x-should-retry"]) == (502, "false")


async def test_a_broken_upstream_is_asked_again_and_then_the_next_one() -> None:
    """fault: U1, U7"""
    broken = whole(b'{"error":"down"}', status="500 Internal Server Error")
    async with gateway(answering(broken, GOOD_WHOLE), retries=2) as (url, (upstream,)):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=False))
        assert received.status == 200
        assert len(upstream.requests) == 2
    async with gateway(answering(broken), answering(GOOD_WHOLE)) as (url, (first, second)):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=False))
        assert received.status == 200
        assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_nothing_is_asked_again_once_the_client_has_seen_a_byte() -> None:
    """field: G6, G7"""

    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(sse(ROLE, HELLO, done=False)))
        await asyncio.sleep(0.02)

    async with gateway(half, answering(GOOD_STREAM), retries=2) as (url, (first, second)):
        failed("openai_chat", await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=True)))
        assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_a_client_that_does_not_read_holds_the_upstream_back() -> None:
    """fault: C3"""
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS), chunk(sse(ROLE, done=False)))
        piece = chunk(sse(HELLO, done=False) * 400)
        for _ in range(2000):
            await peer.send(piece)
            sent += len(piece)

    async with gateway(flood) as (url, _), HttpConnection(url) as caller:
        await caller.post(PATHS["anthropic"], body("anthropic", "m", stream=True))
        await caller.head()
        caller.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the kernel's buffers fill up
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 24 * 1024 * 1024


async def test_warnings_name_what_could_not_be_sent_to_the_upstream() -> None:
    """field: B34"""
    async with gateway(answering(GOOD_WHOLE)) as (url, _):
        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        received = await ask(url, PATHS["anthropic"], body("anthropic", "m", stream=False, tools=tools))
        assert received.status == 200
        assert "web_search" in received.headers["x-toolgate-warning"]


@every_client
async def test_usage_that_the_upstream_did_not_give_is_counted_and_marked(client: str) -> None:
    """fault: U9"""
    async with gateway(answering(GOOD_WHOLE)) as (url, _):
        received = await ask(url, PATHS[client], body(client, "m", stream=False))
        usage = received.json.get("usage", received.json)
        names = ("output_tokens", "completion_tokens", "eval_count")
        assert [usage[name] for name in names if name in usage] == [1]
        assert received.headers["x-toolgate-usage"] == "estimated"


def _canonical(text: bytes) -> bytes:
    choice = b'{"index": 0, "message": {"role": "assistant", "content": "%b"}, "finish_reason": "stop"}' % text
    start = b'{ "id": "x", "object": "chat.completion", "created": 1, "model": "up", "new": 1.50,\n'
    return start + b'"choices": [%b], "usage": {"prompt_tokens": 1, "completion_tokens": 2} }' % choice


async def test_a_whole_answer_without_a_flaw_passes_byte_for_byte() -> None:
    """spec: U2"""
    raw = _canonical("Grüße".encode())
    async with gateway(answering(whole(raw))) as (url, _):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=False))
    assert received.body == raw


async def test_a_whole_answer_that_is_not_utf_8_is_mended_on_the_way() -> None:
    async with gateway(answering(whole(_canonical(b"a\xffb")))) as (url, _):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=False))
    assert received.json["choices"][0]["message"]["content"] == "a\ufffdb"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_redirect_of_an_upstream_is_reported_as_such_and_is_not_repeated(stream: bool) -> None:
    elsewhere = head("location: http://elsewhere.example/v1?key=canary", "content-length: 0", status="307 Elsewhere")
    async with gateway(answering(elsewhere), retries=3) as (url, upstreams):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=stream))
        assert received.status == 502
        assert b"redirects to http://elsewhere.example/v1. Redirects are not followed" in received.body
        assert b"canary" not in received.body
        assert len(upstreams[0].requests) == 1


async def test_blanks_before_a_stream_are_looked_at_once() -> None:
    """Of 400 pieces with 8 KB of blanks each, none is kept: they were searched all over again with each piece."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked", EVENTS))
        for _ in range(400):
            await peer.send(chunk(b"\n" * 8192))
        await peer.send(chunk(sse(ROLE, HELLO, STOP)), chunk(b""))

    async with gateway(script) as (url, _):
        received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", stream=True))
        assert received.status == 200
        assert b"Hello" in received.body
