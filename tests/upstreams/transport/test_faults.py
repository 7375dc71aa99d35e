"""What the transport does when an upstream is absent, slow, cut off or endless."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from typing import Any

import pytest

from tests.ports import refusing_port
from tests.upstreams.transport.faulty import (
    Fault,
    FaultProxy,
    Faulty,
    Peer,
    answering,
    chunk,
    chunked,
    head,
    on_both_loops,
    whole,
)
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamTimeout, UpstreamUnavailable
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamResponse, UpstreamTimeouts

MB = 1_000_000
STREAM = head("transfer-encoding: chunked")


async def collect(reply: UpstreamResponse) -> bytes:
    return b"".join([piece async for piece in reply])


async def drain(reply: UpstreamResponse, take: Callable[[bytes], None]) -> None:
    async for piece in reply:
        take(piece)


async def read_then_fail(reply: UpstreamResponse) -> tuple[bytes, Exception]:
    """All that a reply hands over before it raises, and what it raises."""
    pieces: list[bytes] = []
    with pytest.raises((InvalidUpstreamAnswer, UpstreamTimeout)) as caught:
        await drain(reply, pieces.append)
    return b"".join(pieces), caught.value


@on_both_loops
async def test_a_closed_port_is_unavailable() -> None:
    """fault: U1"""
    with refusing_port() as port:
        async with aclosing(UpstreamHttpClient()) as client:
            with pytest.raises(UpstreamUnavailable, match=rf"^127\.0\.0\.1:{port} refused the connection$"):
                await client.post(f"http://127.0.0.1:{port}/x", {"authorization": "Bearer canary"}, b"{}")


@on_both_loops
async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    """fault: U1"""
    async with aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(UpstreamUnavailable, match=r"^the name of nowhere\.invalid:80 does not resolve$"):
            await client.post("http://nowhere.invalid/x", {}, b"{}")


@on_both_loops
async def test_a_listener_that_never_accepts_runs_into_the_connect_limit() -> None:
    """fault: U1"""
    with socket.socket() as listener, ExitStack() as crowd:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for _ in range(4):  # fill the backlog, so that the next SYN is dropped
            sock = crowd.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        async with aclosing(UpstreamHttpClient()) as client:
            with pytest.raises(UpstreamUnavailable, match=r"within 0\.2 s \(limit: connect\)"):
                await client.post(url, {}, b"", timeouts=UpstreamTimeouts(connect=0.2))


@on_both_loops
async def test_the_second_address_of_a_name_is_tried_when_the_first_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: U1"""
    async with Faulty(answering(whole(b"here"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        loop_type: Any = type(asyncio.get_running_loop())
        resolve = loop_type.getaddrinfo
        twins = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", upstream.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", upstream.port)),
        ]

        async def two_addresses(loop: object, host: str, *rest: object, **options: object) -> Any:
            return list(twins) if host == "twins.test" else await resolve(loop, host, *rest, **options)

        monkeypatch.setattr(loop_type, "getaddrinfo", two_addresses, raising=False)
        reply = await client.post(f"http://twins.test:{upstream.port}/", {}, b"{}")
        assert await reply.read() == b"here"


@on_both_loops
async def test_a_slow_first_byte_times_out() -> None:
    """fault: U3"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(UpstreamTimeout, match=r"sent nothing for 0\.2 s \(limit: first_byte\)"):
            await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(first_byte=0.2))
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_an_early_head_does_not_shorten_the_wait_for_the_first_byte_of_the_body() -> None:
    """fault: U3"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM)
        await asyncio.sleep(0.4)
        await peer.send(chunk(b"thought"), chunk(b""))

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(first_byte=5, idle=0.1))
        assert await collect(reply) == b"thought"
        reply = await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(first_byte=0.2, idle=0.1))
        with pytest.raises(UpstreamTimeout, match="first_byte"):
            await reply.read()


@on_both_loops
async def test_a_stall_in_mid_stream_hands_over_what_came_and_then_times_out() -> None:
    """fault: U4"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM, chunk(b"one"))
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(idle=0.2))
        came, failure = await read_then_fail(reply)
        assert came == b"one"
        assert str(failure) == f"{upstream.name} fell silent for 0.2 s in mid-answer (limit: idle)"
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_a_stream_that_never_stalls_runs_into_the_total_limit() -> None:
    """fault: U9"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM)
        while True:
            await peer.send(chunk(b"."))
            await asyncio.sleep(0.02)

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(idle=5, total=0.3))
        came, failure = await read_then_fail(reply)
        assert set(came) == set(b".")
        assert "did not finish within 0.3 s (limit: total)" in str(failure)


@on_both_loops
async def test_a_slow_reader_does_not_count_as_a_stalled_upstream() -> None:
    async with Faulty(answering(chunked(b"x" * 300_000, b"y"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}", timeouts=UpstreamTimeouts(first_byte=0.2, idle=0.1))
        await asyncio.sleep(0.4)
        assert len(await reply.read()) == 300_001


CUTS = {
    "a chunk": STREAM + b"a\r\nhalf",
    "between chunks": STREAM + chunk(b"half"),
    "before the last line": STREAM + chunk(b"half") + b"0\r\n",
    "the declared length": head("content-length: 99") + b"half",
}


@pytest.mark.parametrize("ending", ["fin", "rst"])
@pytest.mark.parametrize("sent", CUTS.values(), ids=CUTS)
@on_both_loops
async def test_a_body_cut_in_the_middle_is_never_a_clean_end(sent: bytes, ending: str) -> None:
    """fault: U5"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await read.wait()
        if ending == "rst":
            peer.reset()

    read = asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        first = await anext(reply)
        read.set()
        rest, failure = await read_then_fail(reply)
        assert first + rest == b"half"
        assert str(failure) == f"{upstream.name} closed the connection in the middle of its answer"
        with pytest.raises(InvalidUpstreamAnswer):
            await anext(reply)


@on_both_loops
async def test_a_body_without_length_ends_with_fin_but_not_with_rst() -> None:
    """fault: U5"""

    async def script(peer: Peer) -> None:
        request = await peer.request()
        await peer.send(head(), b"until")
        await read.wait()
        if request is not None and request.body == b"rst":
            peer.reset()
        else:
            peer.half_close()
            await peer.gone()

    read = asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        cut = await client.post(upstream.url, {}, b"rst")
        clean = await client.post(upstream.url, {}, b"fin")
        assert await anext(cut) == await anext(clean) == b"until"
        read.set()
        assert await collect(clean) == b""
        assert isinstance((await read_then_fail(cut))[1], InvalidUpstreamAnswer)


@pytest.mark.parametrize("ending", ["fin", "rst"])
@on_both_loops
async def test_a_connection_lost_before_the_head_is_whole_is_garbled_and_before_any_byte_unavailable(
    ending: str,
) -> None:
    """fault: U5"""

    async def script(peer: Peer) -> None:
        request = await peer.request()
        assert request is not None
        await peer.send(request.body)
        if ending == "rst":
            await asyncio.sleep(0.05)  # an RST overtakes what was sent before it
            peer.reset()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(UpstreamUnavailable, match="closed the connection without an answer"):
            await client.post(upstream.url, {}, b"")
        with pytest.raises(InvalidUpstreamAnswer, match="in the middle"):
            await client.post(upstream.url, {}, b"HTTP/1.1 200 OK\r\ncontent-")
        assert len(upstream.requests) == 2, "a fresh connection is no reason to ask again"


@pytest.mark.parametrize("after", [1, 20, 60, 80, 100])
@pytest.mark.parametrize("then", ["fin", "rst", "stall"])
@on_both_loops
async def test_no_cut_of_a_chunked_answer_looks_whole(after: int, then: str) -> None:
    """fault: U4 U5"""
    answer = chunked(b"a" * 30, b"b" * 30)
    assert len(answer) > 100
    async with Faulty(answering(answer)) as upstream, aclosing(UpstreamHttpClient()) as client:
        fault = Fault(after=after, then=then)  # type: ignore[arg-type]
        async with FaultProxy(upstream.port, fault) as proxy:
            limits = UpstreamTimeouts(first_byte=0.1, idle=0.1)
            with pytest.raises((InvalidUpstreamAnswer, UpstreamTimeout)):
                await (await client.post(f"http://127.0.0.1:{proxy.port}/", {}, b"{}", timeouts=limits)).read()


GARBAGE = {
    "html without a head": b"<html>nope</html>",
    "tls alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "bad chunk size": STREAM + b"zz\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\na",
    "negative length": head("content-length: -1"),
    "length of thousands of zeros": head(f"content-length: {1:05000}"),
    "foreign transfer-encoding": head("transfer-encoding: gzip") + b"abc",
    "folded header": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
    "switched protocol": head("connection: upgrade", "upgrade: ws", status="101 Switching"),
    "status below one hundred": head("content-length: 0", status="099 What"),
    "chunk without its line end": STREAM + b"3\r\nabcdef",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
@on_both_loops
async def test_broken_framing_is_garbled(sent: bytes) -> None:
    """fault: U8"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(InvalidUpstreamAnswer, match=rf"^{upstream.name} "):
            await (await client.post(upstream.url, {}, b"{}")).read()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_an_upstream_that_keeps_sending_after_we_close_is_cut_off_and_not_pooled() -> None:
    """fault: U11"""
    refused = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM)
        try:
            while True:
                await peer.send(chunk(b"more"))
                await asyncio.sleep(0)
        except ConnectionError:
            refused.set()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        await anext(reply)
        await reply.aclose()
        await asyncio.wait_for(refused.wait(), 30)
        again = await asyncio.wait_for(client.post(upstream.url, {}, b"{}"), 30)
        await again.aclose()
        assert len(upstream.peers) == 2


@on_both_loops
async def test_a_cancelled_caller_closes_the_socket_and_frees_the_slot_before_and_after_the_head() -> None:
    """fault: U11"""

    async def script(peer: Peer) -> None:
        await peer.request()
        if len(upstream.peers) == 2:
            await peer.send(STREAM)
        await asked.put(None)
        await peer.gone()

    async def ask() -> None:
        await (await client.post(upstream.url, {}, b"{}")).read()

    asked: asyncio.Queue[None] = asyncio.Queue()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        for number in range(3):
            task = asyncio.ensure_future(ask())
            await asyncio.wait_for(asked.get(), 30)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(upstream.peers[number].left.wait(), 30)


@pytest.mark.parametrize("ending", ["fin", "rst"])
@on_both_loops
async def test_a_stale_pooled_connection_is_retried_once_on_a_fresh_one(ending: str) -> None:
    """fault: U12"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(b"ok"))
        if len(upstream.peers) == 1:
            await peer.request()  # taken, and dropped without a byte: as if it had never arrived
            if ending == "rst":
                peer.reset()
        else:
            await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        for _ in range(2):
            assert await (await client.post(upstream.url, {}, b"{}")).read() == b"ok"
        assert len(upstream.peers) == 2


@on_both_loops
async def test_a_reused_connection_that_breaks_after_the_first_byte_is_not_retried() -> None:
    """fault: U12"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(b"ok"))
        await peer.request()
        await peer.send(b"H")

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        await (await client.post(upstream.url, {}, b"{}")).read()
        with pytest.raises(InvalidUpstreamAnswer):
            await client.post(upstream.url, {}, b"{}")
        assert len(upstream.requests) == 2


@on_both_loops
async def test_a_reused_connection_that_closes_after_long_thought_is_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fault: U12"""
    monkeypatch.setattr("toolgate.upstreams.transport.response_reader.STALE_WITHIN", 0.05)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(b"ok"))
        await peer.request()
        await asyncio.sleep(0.2)

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        await (await client.post(upstream.url, {}, b"{}")).read()
        with pytest.raises(UpstreamUnavailable):
            await client.post(upstream.url, {}, b"{}")
        assert len(upstream.requests) == 2
