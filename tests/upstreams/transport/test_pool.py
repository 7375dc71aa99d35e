"""Connections are shared, limited, kept for a while, and never leaked."""

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing

import psutil
import pytest

from tests.upstreams.transport.faulty import Faulty, Peer, answering, chunk, chunked, head, on_both_loops, whole
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamTimeout, UpstreamUnavailable
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamTimeouts, dial
from toolgate.upstreams.transport.address import UpstreamOrigin
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.pool import ConnectionPool

OK = whole(b"ok")
PATIENT = UpstreamTimeouts()


async def ask(
    client: UpstreamHttpClient, upstream: Faulty, limits: UpstreamTimeouts = PATIENT, body: bytes = b"{}"
) -> bytes:
    return await (await client.post(upstream.url, {}, body, timeouts=limits)).read()


def sockets() -> set[tuple[object, object]]:
    """The addresses of this process's sockets; those of tests before may be closed at any moment."""
    return {(one.laddr, one.raddr) for one in psutil.Process().net_connections("tcp")}


@on_both_loops
async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with Faulty(answering(OK, chunked(b"ok"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        for _ in range(20):
            assert await ask(client, upstream) == b"ok"
        assert len(upstream.peers) == 1


CLOSING = {
    "connection: close": whole(b"ok", "connection: close"),
    "http/1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "more than its answer": OK + OK,
    "more than a final chunk": chunked(b"ok") + b"x",
}


@pytest.mark.parametrize("answer", CLOSING.values(), ids=CLOSING)
@on_both_loops
async def test_a_connection_that_may_not_be_reused_is_closed(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        for number in range(2):
            assert await ask(client, upstream) == b"ok"
            await asyncio.wait_for(upstream.peers[number].left.wait(), 30)
        assert len(upstream.requests) == 2


@on_both_loops
async def test_bytes_that_arrive_unasked_on_an_idle_connection_are_nobodys_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await read.wait()
        await peer.send(whole(b"poison"))
        await peer.gone()

    read = asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        assert await ask(client, upstream) == b"ok"
        read.set()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)
        assert await ask(client, upstream) == b"ok"
        assert len(upstream.peers) == 2


@on_both_loops
async def test_an_answer_that_outruns_its_request_is_complete_but_its_connection_is_not_reused() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(whole(b"too large", status="413 No"))
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"x" * 64_000_000)
        assert (reply.status, await reply.read()) == (413, b"too large")
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(keepalive_seconds=0.1)) as client:
        assert await ask(client, upstream) == b"ok"
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)
        assert await ask(client, upstream) == b"ok"
        assert len(upstream.peers) == 2


@on_both_loops
async def test_a_connection_closed_by_the_peer_while_idle_is_replaced() -> None:
    """fault: U12"""
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        peer.half_close()
        await peer.gone()
        closed.set()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        assert await ask(client, upstream) == b"ok"
        await asyncio.wait_for(closed.wait(), 30)
        assert await ask(client, upstream) == b"ok"
        assert len(upstream.requests) == 2


async def _held(peer: Peer) -> None:
    """Answers each request with its own body, when the body names an event that is set."""
    while request := await peer.request():
        await GATES[request.body].wait()
        await peer.send(whole(request.body))


GATES: dict[bytes, asyncio.Event] = {}


def gates(*names: bytes) -> None:
    GATES.clear()
    GATES.update({name: asyncio.Event() for name in names})


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what the server has seen has no event of its own
        await asyncio.sleep(0.001)


@on_both_loops
async def test_callers_over_the_limit_are_served_in_the_order_they_came() -> None:
    names = [b"%d" % number for number in range(6)]
    gates(*names)
    done: list[bytes] = []

    async def caller(body: bytes) -> None:
        done.append(await ask(client, upstream, body=body))

    async with Faulty(_held) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(caller(name))
            for name in names:
                await until(lambda: len(upstream.requests) > len(done))
                GATES[name].set()
                await until(lambda name=name: name in done)  # type: ignore[misc]
        assert done == names
        assert [request.body for request in upstream.requests] == names
        assert len(upstream.peers) == 1


@on_both_loops
async def test_no_more_connections_than_the_limit_are_ever_open() -> None:
    names = [b"%d" % number for number in range(12)]
    gates(*names)
    async with Faulty(_held) as upstream, aclosing(UpstreamHttpClient(per_host=3)) as client:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(ask(client, upstream, body=name))
            await until(lambda: len(upstream.requests) == 3)
            await asyncio.sleep(0.05)
            assert len(upstream.requests) == 3
            for gate in GATES.values():
                gate.set()
        assert len(upstream.requests) == 12
        assert len(upstream.peers) == 3


@on_both_loops
async def test_a_cancelled_waiter_loses_no_slot() -> None:
    gates(b"first", b"second", b"third")
    async with Faulty(_held) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        first = asyncio.ensure_future(ask(client, upstream, body=b"first"))
        await until(lambda: bool(upstream.requests))
        second = asyncio.ensure_future(ask(client, upstream, body=b"second"))
        third = asyncio.ensure_future(ask(client, upstream, body=b"third"))
        await asyncio.sleep(0)
        second.cancel()
        for gate in GATES.values():
            gate.set()
        assert await asyncio.wait_for(first, 30) == b"first"
        assert await asyncio.wait_for(third, 30) == b"third"
        assert second.cancelled()
        assert [request.body for request in upstream.requests] == [b"first", b"third"]


@on_both_loops
async def test_a_waiter_cancelled_in_the_moment_its_turn_comes_passes_the_slot_on() -> None:
    gates(b"first", b"second", b"third")
    async with Faulty(_held) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:

        async def answered_and_cancelling() -> bytes:
            reply = await client.post(upstream.url, {}, b"first")
            second.cancel()  # its turn has come already, but it has not run yet
            return await reply.read()

        first = asyncio.ensure_future(answered_and_cancelling())
        await until(lambda: bool(upstream.requests))
        second = asyncio.ensure_future(ask(client, upstream, body=b"second"))
        third = asyncio.ensure_future(ask(client, upstream, body=b"third"))
        await asyncio.sleep(0)
        for gate in GATES.values():
            gate.set()
        assert await asyncio.wait_for(first, 30) == b"first"
        assert await asyncio.wait_for(third, 30) == b"third"
        assert second.cancelled()
        assert [request.body for request in upstream.requests] == [b"first", b"third"]


@on_both_loops
async def test_a_caller_that_waits_too_long_for_a_connection_gets_the_reason() -> None:
    gates(b"first")
    async with Faulty(_held) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        first = asyncio.ensure_future(ask(client, upstream, body=b"first"))
        await until(lambda: bool(upstream.requests))
        words = rf"^all 1 connections to {upstream.name} were busy for 0\.1 s$"
        with pytest.raises(UpstreamUnavailable, match=words) as caught:
            await ask(client, upstream, UpstreamTimeouts(first_byte=0.1))
        assert caught.value.status == 503
        with pytest.raises(UpstreamTimeout, match=r"within 0\.1 s \(limit: total\)"):
            await ask(client, upstream, UpstreamTimeouts(total=0.1))
        GATES[b"first"].set()
        assert await first == b"first"
        assert await ask(client, upstream, body=b"first") == b"first"


@on_both_loops
async def test_a_failed_dial_gives_its_slot_back() -> None:
    async with aclosing(UpstreamHttpClient(per_host=1)) as client:
        for _ in range(3):
            with pytest.raises(UpstreamUnavailable):
                await asyncio.wait_for(client.post("http://127.0.0.1:1/", {}, b""), 30)


@on_both_loops
async def test_a_retry_after_a_stale_connection_does_not_try_another_pooled_one() -> None:
    """fault: U12"""

    async def script(peer: Peer) -> None:
        await peer.request()
        both.release()
        await full.wait()
        await peer.send(OK)
        if len(upstream.peers) < 3:
            await peer.request()  # taken, and dropped without a byte
        else:
            await peer.gone()

    both, full = asyncio.Semaphore(0), asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        pair = asyncio.gather(ask(client, upstream), ask(client, upstream))
        for _ in range(2):
            await both.acquire()
        full.set()
        assert list(await pair) == [b"ok", b"ok"]
        assert await ask(client, upstream) == b"ok"
        assert len(upstream.requests) == 4


@on_both_loops
async def test_a_retry_keeps_to_the_limit_by_closing_an_idle_connection() -> None:
    """fault: U12"""

    async def script(peer: Peer) -> None:
        number = len(upstream.peers)
        await peer.request()
        await peer.send(OK)
        if number == 1:
            await peer.request()
        else:
            await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        assert await ask(client, upstream) == b"ok"
        both = await asyncio.gather(ask(client, upstream), ask(client, upstream))
        assert list(both) == [b"ok", b"ok"]
        await asyncio.wait_for(upstream.peers[1].left.wait(), 30)
        assert len(upstream.peers) == 3


@on_both_loops
async def test_a_connection_that_opens_after_closing_is_closed_too() -> None:
    async with Faulty(answering(OK)) as upstream:
        client = UpstreamHttpClient()
        late = asyncio.ensure_future(ask(client, upstream))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(UpstreamUnavailable, match="closed here"):
            await late
        assert upstream.requests == []


@on_both_loops
async def test_of_two_addresses_that_connect_at_once_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [socket.socketpair() for _ in range(2)]
    left = [ours for ours, _ in ends]
    for _, theirs in ends:
        theirs.setblocking(False)
    started = asyncio.Event()

    async def connect(*_: object) -> socket.socket:
        sock = left.pop()
        if not left:
            started.set()
        await started.wait()
        return sock

    monkeypatch.setattr(dial, "_connect_to", connect)
    monkeypatch.setattr(dial, "NEXT_ADDRESS_AFTER", 0.01)
    winner = await dial._race(asyncio.get_running_loop(), [(socket.AF_INET, "a"), (socket.AF_INET, "b")])
    winner.close()
    assert [theirs.recv(1) for _, theirs in ends] == [b"", b""]
    for _, theirs in ends:
        theirs.close()


@on_both_loops
async def test_a_limit_of_infinity_is_no_limit() -> None:
    never = float("inf")
    limits = UpstreamTimeouts(connect=never, first_byte=never, idle=never, total=never)
    async with Faulty(answering(chunked(b"ok"))) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        assert await asyncio.gather(*(ask(client, upstream, limits) for _ in range(3))) == [b"ok"] * 3


@on_both_loops
async def test_closing_ends_running_requests_and_refuses_waiting_ones() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"))
        await peer.gone()

    async with Faulty(script) as upstream:
        client = UpstreamHttpClient(per_host=1)
        reply = await client.post(upstream.url, {}, b"{}")
        reading = asyncio.ensure_future(reply.read())
        waiting = asyncio.ensure_future(ask(client, upstream))
        await asyncio.sleep(0)
        await asyncio.wait_for(client.aclose(), 30)
        with pytest.raises(InvalidUpstreamAnswer, match="given up"):
            await reading
        with pytest.raises(UpstreamUnavailable, match="closed here"):
            await waiting
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_nothing_is_left_open_after_closing() -> None:
    before = sockets()
    async with Faulty(answering(OK)) as upstream:
        client = UpstreamHttpClient()
        await asyncio.gather(*(ask(client, upstream) for _ in range(10)))
        given_up = await client.post(upstream.url, {}, b"{}")
        await given_up.aclose()
        assert len(sockets() - before) > 1
        await client.aclose()
        await until(lambda: not upstream._tasks)
    assert sockets() <= before
    del given_up
    gc.collect()  # an unclosed socket or transport would warn here, and a warning is an error


@pytest.mark.parametrize("ends", [True, False])
@on_both_loops
async def test_a_released_reply_keeps_its_connection_only_if_the_end_follows(ends: bool) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(head("transfer-encoding: chunked"), chunk(b"[DONE]"))
            await released.wait()
            await (peer.send(chunk(b"")) if ends else peer.gone())

    released = asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(per_host=1)) as client:
        for _ in range(2):
            reply = await client.post(upstream.url, {}, b"{}")
            assert await anext(reply) == b"[DONE]"
            reply.release()
            await reply.aclose()
            released.set()
        del reply
        assert len(upstream.peers) == (1 if ends else 2)
        if not ends:
            await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_a_reply_that_is_dropped_is_noticed_and_its_socket_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"))
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        with pytest.warns(ResourceWarning, match=f"a reply of {upstream.name} was neither read nor closed"):
            del reply
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_an_answer_has_one_reader_at_a_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"))
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        reading = asyncio.ensure_future(reply.read())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await reply.read()
        reading.cancel()
        await asyncio.wait({reading})


def test_the_transport_imports_no_other_http_client() -> None:
    program = (
        "import sys, toolgate.upstreams.transport;"
        "print(*sorted({'aiohttp', 'httpx', 'http.client'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


@on_both_loops
async def test_a_request_that_is_left_as_it_connects_leaves_no_connection_to_wait_for() -> None:
    loop = asyncio.get_running_loop()

    async def dialled(limit: float, make: Callable[[], UpstreamHttpConnection]) -> UpstreamHttpConnection:
        def made() -> UpstreamHttpConnection:
            loop.call_soon(
                lambda: loop.call_soon(asking.cancel)
            )  # when the socket is there, and before that is known here
            return make()

        return await dial.dial(UpstreamOrigin("http", "127.0.0.1", upstream.port), None, None, limit, made)

    async with Faulty(answering(OK)) as upstream:
        pool = ConnectionPool(loop, "upstream", dialled, limit=1, keepalive=1)
        asking = asyncio.ensure_future(pool.acquire(PATIENT))
        await asyncio.wait({asking})
        assert asking.cancelled()
        await pool.aclose()
        assert not pool.in_use
