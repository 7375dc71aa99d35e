"""Peers that fail: every open request ends with a fault that says what happened, and the next one gets a new connection."""

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from msgspec.structs import replace
from websockets.asyncio.server import serve

from tests.upstreams.stateful_chat.peer_server import QUICK, answering, emitted, request, scripted_peer, staged, until
from tests.upstreams.transport.faulty import client_tls, on_both_loops, server_tls
from toolgate.conversation.errors import (
    InternalGatewayError,
    InvalidUpstreamAnswer,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.conversation.usage_tally import UsageTally
from toolgate.upstreams.stateful_chat import ReconnectingStatefulChat, StatefulChatLimits, StatefulChatModel
from toolgate.upstreams.stateful_chat.frames import StatefulChatCancelAnswerFrame, StatefulChatUserMessageFrame
from toolgate.upstreams.transport import UpstreamTimeouts
from toolgate.upstreams.wrappers.usage_counting import UsageCountingModel

KIB = 1024
WELCOME = {"type": "welcome", "protocol": 1}


async def send_frame(connection: Any, frame: dict[str, Any]) -> None:
    await connection.send(json.dumps(frame))


def scripted(answer: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    """A peer that does all as it should, until it is sent a message."""

    async def handler(connection: Any) -> None:
        async for text in connection:
            match json.loads(text):
                case {"type": "hello"}:
                    await send_frame(connection, WELCOME)
                case {"type": "create_conversation", "id": id}:
                    await send_frame(connection, {"type": "conversation_created", "id": id, "conversation": "c"})
                case {"type": "send_message", "id": id}:
                    await answer(connection, id)

    return handler


@on_both_loops
async def test_a_peer_that_crashes_in_mid_answer_fails_every_open_answer_and_serves_again() -> None:
    """fault: U5"""
    async with staged() as stage:
        other = await stage.model.ask(request("/stall"))
        crashing = await stage.model.ask(request("/crash"))
        for answer in (crashing, other):
            with pytest.raises(InvalidUpstreamAnswer, match="broke off the connection in mid-answer"):
                await emitted(answer)
        assert await stage.ask("hello") == "You said (1): hello"


async def test_a_peer_that_crashes_before_the_first_word_is_unavailable_and_not_asked_again_in_silence() -> None:
    """fault: U5"""
    async with staged() as stage:
        asking = asyncio.create_task(stage.model.ask(request("/silent")))
        await until(lambda: stage.echo.open == 1)
        with pytest.raises(InvalidUpstreamAnswer):
            await emitted(await stage.model.ask(request("/crash")))
        with pytest.raises(UpstreamUnavailable, match="without an answer") as raised:
            await asking
        assert raised.value.code == "upstream_closed"


async def test_a_client_that_leaves_while_the_conversation_is_stored_pays_what_the_peer_reported() -> None:
    """The report had come, but only the last event had it: a client that left before was charged an estimate."""
    storing = asyncio.Event()

    class Slow:
        async def take(self, peer: str, owner: str, digest: str) -> str | None:
            return None

        async def keep(self, peer: str, owner: str, digest: str, conversation: str) -> None:
            storing.set()
            await asyncio.Event().wait()

    async def answer(connection: Any, id: str) -> None:
        await send_frame(connection, {"type": "delta", "id": id, "text": "Well."})
        await send_frame(connection, {"type": "done", "id": id, "usage": {"input": 70_000, "output": 30_000}})

    tally = UsageTally()
    async with scripted_peer(scripted(answer)) as peer:
        model = UsageCountingModel(StatefulChatModel(peer, "bot", Slow()), "bot")
        reading = asyncio.ensure_future(emitted(await model.ask(replace(request("hello"), tally=tally))))
        async with asyncio.timeout(60):
            await storing.wait()
        reading.cancel()
        await asyncio.wait({reading})
        used = await tally.close_all()
    assert used is not None
    assert (used.input, used.output) == (70_000, 30_000)


async def test_the_conversation_of_a_broken_answer_is_not_used_again() -> None:
    """fault: U5"""
    async with staged() as stage:
        first = await stage.ask("hello")
        with pytest.raises(InvalidUpstreamAnswer):
            await stage.ask("hello", first, "/crash")
        await stage.ask("hello", first, "again")
        assert len(stage.conversations) == 2


@on_both_loops
async def test_a_peer_that_stalls_is_timed_out_and_the_others_do_not_notice() -> None:
    """fault: U4"""
    limits = replace(QUICK, timeouts=UpstreamTimeouts(2.0, 0.2, 0.2, 20.0))
    async with staged(limits) as stage:
        stalled = await stage.model.ask(request("/stall"))
        with pytest.raises(UpstreamTimeout, match="limit: idle"):
            await emitted(stalled)
        with pytest.raises(UpstreamTimeout, match="limit: first_byte"):
            await stage.ask("/silent")
        await until(lambda: stage.echo.open == 0)
        assert await stage.ask("hello") == "You said (1): hello"


async def test_an_answer_has_a_total_limit() -> None:
    limits = replace(QUICK, timeouts=UpstreamTimeouts(2.0, 5.0, 5.0, 0.2))
    async with staged(limits) as stage:
        with pytest.raises(UpstreamTimeout, match="limit: total"):
            await stage.ask("/stall")


async def test_a_frame_that_is_too_large_ends_the_connection_with_an_error_about_its_size() -> None:
    """fault: U9"""
    async with staged(replace(QUICK, frame=64 * KIB)) as stage:
        with pytest.raises(UpstreamUnavailable, match="sent a frame larger than 64 KiB"):
            await stage.ask(f"/huge {65 * KIB}")
        assert await stage.ask("hello") == "You said (1): hello"


async def test_an_endless_answer_is_cut_at_the_cap_and_cancelled() -> None:
    """fault: U9"""
    async with staged(replace(QUICK, answer=10 * KIB)) as stage:
        with pytest.raises(InvalidUpstreamAnswer, match="more than 10 KiB in one answer"):
            await stage.ask("/endless")
        await until(lambda: stage.echo.open == 0)


async def test_a_client_that_does_not_read_loses_its_answer_and_delays_no_other() -> None:
    """fault: C3"""
    async with staged(replace(QUICK, unread=64 * KIB)) as stage:
        unread = await stage.model.ask(request("/endless"))
        await until(lambda: stage.echo.open == 0)
        assert await stage.ask("hello") == "You said (1): hello"
        with pytest.raises(InvalidUpstreamAnswer, match="the client did not read 64 KiB of it"):
            await emitted(unread)


async def test_an_invalid_frame_ends_the_connection() -> None:
    """fault: U8"""
    async with staged() as stage:
        with pytest.raises(UpstreamUnavailable, match="does not keep to the protocol"):
            await stage.ask("/garble")
        assert await stage.ask("hello") == "You said (1): hello"


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"delta","id":1,"text":"x"}',
        '{"id":"1"}',
        "[]",
        '{"type":"done","id":"1","usage":{"input":-1}}',
        "[" * 5000,
    ],
)
async def test_a_known_frame_with_a_wrong_field_is_no_frame(frame: str) -> None:
    """fault: U8"""

    async def answer(connection: Any, id: str) -> None:
        await connection.send(frame)

    async with answering(scripted(answer)) as model:
        with pytest.raises(UpstreamUnavailable, match="does not keep to the protocol"):
            await model.ask(request("hi"))


async def test_frames_of_unknown_types_and_fields_and_ids_are_ignored() -> None:
    async def answer(connection: Any, id: str) -> None:
        await send_frame(connection, {"type": "mood", "id": 7, "text": {}})
        await send_frame(connection, {"type": "delta", "id": "nobody", "text": "not yours"})
        await send_frame(connection, {"type": "delta", "id": id, "text": "yours", "colour": "red"})
        await send_frame(connection, {"type": "ping"})
        await send_frame(connection, {"type": "done", "id": id, "reason": "length"})
        await send_frame(connection, {"type": "delta", "id": id, "text": "too late"})

    async with answering(scripted(answer)) as model:
        events = await emitted(await model.ask(request("hi")))
        assert "yours" in str(events)
        assert "not yours" not in str(events)
        assert events[-1].reason == "length"  # type: ignore[union-attr]  # the last one has one


async def test_a_binary_frame_ends_the_connection() -> None:
    async def answer(connection: Any, id: str) -> None:
        await connection.send(b"\x00\x01")

    async with answering(scripted(answer)) as model:
        with pytest.raises(UpstreamUnavailable, match="binary frame"):
            await model.ask(request("hi"))


async def test_a_peer_may_answer_in_fragments() -> None:
    async def answer(connection: Any, id: str) -> None:
        text = json.dumps({"type": "delta", "id": id, "text": "grüße"}, ensure_ascii=False)
        await connection.send(iter(text))
        await send_frame(connection, {"type": "done", "id": id})

    async with answering(scripted(answer)) as model:
        assert "grüße" in str(await emitted(await model.ask(request("hi"))))


async def test_an_answer_to_create_conversation_that_names_none_is_garbled() -> None:
    async def handler(connection: Any) -> None:
        async for text in connection:
            match json.loads(text):
                case {"type": "hello"}:
                    await send_frame(connection, WELCOME)
                case {"id": id}:
                    await send_frame(connection, {"type": "done", "id": id})

    async with answering(handler) as model:
        with pytest.raises(InvalidUpstreamAnswer, match="without a conversation"):
            await model.ask(request("hi"))


async def test_a_peer_that_gives_no_sign_of_life_is_lost_after_two_heartbeats() -> None:
    """fault: U4"""
    async with staged(replace(QUICK, heartbeat=0.4)) as stage:
        stage.echo.deaf = False
        with pytest.raises(UpstreamUnavailable, match="no sign of life"):
            await stage.ask("/deaf")
        stage.echo.deaf = False
        assert await stage.ask("hello") == "You said (1): hello"


async def test_heartbeats_keep_a_silent_connection_open() -> None:
    pings = 0

    async def handler(connection: Any) -> None:
        nonlocal pings
        async for text in connection:
            match json.loads(text):
                case {"type": "hello"}:
                    await send_frame(connection, WELCOME)
                case {"type": "ping"}:
                    pings += 1
                    await send_frame(connection, {"type": "pong"})

    async with scripted_peer(handler, replace(QUICK, heartbeat=0.25)) as peer:
        connection = await peer.connection()
        await until(lambda: pings >= 2)
        assert connection.open


async def test_a_message_longer_than_the_peer_takes_is_refused_before_it_is_sent() -> None:
    async with staged(max_frame=16 * KIB) as stage:
        first = await stage.ask("hello")
        with pytest.raises(UpstreamRejected, match="takes 16 KiB at most") as raised:
            await stage.ask("hello", first, "x" * 20 * KIB)
        assert raised.value.code == "context_length_exceeded"
        assert await stage.ask("hello", first, "shorter") == "You said (2): shorter"


async def test_a_peer_that_does_not_read_is_timed_out() -> None:
    async def handler(connection: Any) -> None:
        await send_frame(connection, WELCOME)
        connection.transport.pause_reading()
        await over.wait()
        connection.transport.abort()

    over = asyncio.Event()
    limits = replace(QUICK, timeouts=UpstreamTimeouts(2.0, 0.3, 5.0, 20.0))
    async with scripted_peer(handler, limits) as peer:
        connection = await peer.connection()
        with pytest.raises(UpstreamTimeout, match="read nothing for"):
            await connection.ask(lambda own: StatefulChatUserMessageFrame(own, "c", "x" * 32 * KIB * KIB))
        await peer.aclose()
        over.set()


async def test_what_could_not_be_sent_may_be_asked_again() -> None:
    """fault: U12"""
    async with staged() as stage:
        connection = await stage.peer.connection()
        await connection.aclose()
        with pytest.raises(UpstreamUnavailable, match="before it was asked") as raised:
            await connection.ask(StatefulChatCancelAnswerFrame)
        assert raised.value.code == "upstream_unavailable"


async def test_a_connection_that_opens_while_the_peer_is_closed_is_closed_too() -> None:
    async with staged() as stage:
        opening = asyncio.create_task(stage.peer.connection())
        await asyncio.sleep(0)
        await stage.peer.aclose()
        with pytest.raises(UpstreamUnavailable, match="closed here"):
            await opening


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_is_verified_or_nothing_is_sent(trusted: bool) -> None:
    """fault: U2"""
    authority = trustme.CA()

    async def handler(connection: Any) -> None:
        await send_frame(connection, WELCOME)
        await connection.wait_closed()

    async with serve(handler, "127.0.0.1", 0, ssl=server_tls(authority)) as server:
        url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tls = client_tls(authority if trusted else trustme.CA())
        peer = ReconnectingStatefulChat("box", url, "canary", limits=QUICK, tls=tls, environment={})
        if trusted:
            assert (await peer.connection()).open
        else:
            with pytest.raises(UpstreamUnavailable, match=r"certificate of .* is not accepted"):
                await peer.connection()
        await peer.aclose()


async def test_a_refused_credential_is_reported_as_ours() -> None:
    async with staged(token="another") as stage:
        with pytest.raises(UpstreamUnavailable, match="refused our credentials") as raised:
            await stage.ask("hello")
        assert raised.value.code == "upstream_auth"
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("close", "message", "code"),
    [
        (4401, "refused our credentials", "upstream_auth"),
        (4426, "speaks another version of the protocol", "upstream_unavailable"),
        (1013, r"closed the connection \(code 1013\)", "upstream_unavailable"),
    ],
)
async def test_a_close_instead_of_a_welcome_is_reported_with_its_reason(close: int, message: str, code: str) -> None:
    async def handler(connection: Any) -> None:
        await connection.close(close, "a secret reason")

    async with answering(handler) as model:
        with pytest.raises(UpstreamUnavailable, match=message) as raised:
            await model.ask(request("hi"))
        assert raised.value.code == code
        assert "secret reason" not in str(raised.value)


async def test_a_peer_of_another_protocol_version_is_refused() -> None:
    async def handler(connection: Any) -> None:
        await send_frame(connection, {"type": "welcome", "protocol": 2})
        await connection.wait_closed()

    async with answering(handler) as model:
        with pytest.raises(UpstreamUnavailable, match="speaks protocol 2, not 1"):
            await model.ask(request("hi"))


async def test_a_peer_that_does_not_welcome_us_is_given_up_at_the_connect_limit() -> None:
    """fault: U3"""

    async def handler(connection: Any) -> None:
        await connection.wait_closed()

    async with answering(handler, StatefulChatLimits(UpstreamTimeouts(0.2, 5, 5, 5))) as model:
        with pytest.raises(UpstreamUnavailable, match=r"no welcome .*limit: connect") as raised:
            await model.ask(request("hi"))
        assert raised.value.status == 504


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "status 200 instead of a WebSocket"),
        (b"HTTP/1.1 302 Found\r\nlocation: ws://127.0.0.1:1/\r\n\r\n", "status 302 instead of a WebSocket"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak WebSocket"),
        (b"", "does not speak WebSocket"),
    ],
    ids=["page", "redirect", "other protocol", "hang up"],
)
async def test_a_server_that_is_no_peer_is_unavailable(answer: bytes, message: str) -> None:
    """fault: U8"""

    async def hand_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hand_out, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        peer = ReconnectingStatefulChat("box", f"ws://127.0.0.1:{port}", limits=QUICK, environment={})
        with pytest.raises(UpstreamUnavailable, match=message):
            await peer.connection()


async def test_while_a_peer_cannot_be_reached_it_is_tried_ever_more_seldom() -> None:
    """fault: U1"""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    peer = ReconnectingStatefulChat("box", f"ws://127.0.0.1:{port}", limits=QUICK, environment={}, chance=lambda: 1.0)
    pauses = []
    for _ in range(8):
        with pytest.raises(UpstreamUnavailable, match="refused the connection"):
            await peer.connection()
        with pytest.raises(UpstreamUnavailable, match="left alone") as raised:
            await peer.connection()
        pauses.append(round(raised.value.retry_after or 0, 1))
        peer._paused_until = 0.0
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_concurrent_requests_share_one_attempt_to_connect() -> None:
    opened = 0

    async def handler(connection: Any) -> None:
        nonlocal opened
        opened += 1
        await send_frame(connection, WELCOME)
        await connection.wait_closed()

    async with scripted_peer(handler) as peer:
        connections = await asyncio.gather(*[peer.connection() for _ in range(20)])
        assert len({id(connection) for connection in connections}) == opened == 1


async def test_closing_fails_what_is_open_and_leaves_no_task_behind() -> None:
    """fault: I7"""
    before = asyncio.all_tasks()
    async with staged() as stage:
        answer = await stage.model.ask(request("/stall"))
        await stage.peer.aclose()
        with pytest.raises(InvalidUpstreamAnswer, match="was left in mid-answer"):
            await emitted(answer)
        with pytest.raises(UpstreamUnavailable, match="closed here"):
            await stage.ask("hello")
    gc.collect()
    await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize("url", ["ftp://x", "ws://", "ws://user:pw@host/", "ws://ho st/", "box:80"])
def test_a_bad_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InternalGatewayError) as raised:
        ReconnectingStatefulChat("box", url, environment={})
    assert "pw" not in str(raised.value)
