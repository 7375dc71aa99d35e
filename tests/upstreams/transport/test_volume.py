"""What the transport does with too much, in too many pieces, or faster than it is read."""

import asyncio
import socket
import time
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import aclosing

import psutil
import pytest

from tests.upstreams.transport.faulty import Faulty, Peer, answering, chunk, chunked, head, on_both_loops, whole
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.upstreams.transport import ResponseSizeLimits, UpstreamHttpClient, UpstreamResponse

MB = 1_000_000
STREAM = head("transfer-encoding: chunked")


async def collect(reply: UpstreamResponse) -> bytes:
    return b"".join([piece async for piece in reply])


async def drain(reply: UpstreamResponse, take: Callable[[bytes], None]) -> None:
    async for piece in reply:
        take(piece)


class Meter:
    """Counts bytes, and how much the process has grown while they came."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._process.memory_info().rss
        self.read = self.longest = self.grown = 0

    def __call__(self, piece: bytes) -> None:
        self.read += len(piece)
        self.longest = max(self.longest, len(piece))
        self.grown = max(self.grown, self._process.memory_info().rss - self._start)


async def _endless_line(peer: Peer) -> None:
    await peer.request()
    await peer.send(head())
    for _ in range(1600):
        await peer.send(b"x" * 65536)


@on_both_loops
async def test_a_hundred_megabytes_without_an_end_are_cut_at_the_cap() -> None:
    """fault: U9"""
    async with (
        Faulty(_endless_line) as upstream,
        aclosing(UpstreamHttpClient(caps=ResponseSizeLimits(stream=40 * 2**20))) as client,
    ):
        meter = Meter()
        reply = await client.post(upstream.url, {}, b"{}")
        with pytest.raises(InvalidUpstreamAnswer, match="sent a body larger than 40 MiB"):
            await drain(reply, meter)
        assert 39 * 2**20 < meter.read <= 40 * 2**20
        assert meter.grown < 8 * MB


@on_both_loops
async def test_a_whole_body_over_its_cap_is_cut_and_its_memory_given_back() -> None:
    """fault: U9"""
    async with Faulty(_endless_line) as upstream, aclosing(UpstreamHttpClient()) as client:
        tracemalloc.start()
        try:
            with pytest.raises(InvalidUpstreamAnswer, match="sent a body larger than 16 MiB") as caught:
                await (await client.post(upstream.url, {}, b"{}")).read()
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert caught.value.__traceback__ is not None, "whoever handles the failure keeps its frames"
        assert held < 4 * MB
        assert peak < 48 * MB


@on_both_loops
async def test_a_declared_length_over_the_cap_is_refused_before_it_is_read() -> None:
    """fault: U9"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head(f"content-length: {10**12}"))
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(InvalidUpstreamAnswer, match="larger than 16 MiB"):
            await (await client.post(upstream.url, {}, b"{}")).read()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


def _bomb(megabytes: int) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([squeeze.compress(bytes(MB)) for _ in range(megabytes)]) + squeeze.flush()


@on_both_loops
async def test_a_gzip_bomb_is_cut_at_the_cap_and_others_get_their_turn() -> None:
    """fault: U9"""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    answer = whole(_bomb(60), "content-encoding: gzip")
    async with (
        Faulty(answering(answer)) as upstream,
        aclosing(UpstreamHttpClient(caps=ResponseSizeLimits(stream=40 * 2**20))) as client,
    ):
        other = asyncio.ensure_future(tick())
        meter = Meter()
        reply = await client.post(upstream.url, {}, b"{}")
        with pytest.raises(InvalidUpstreamAnswer, match="sent a body larger than 40 MiB"):
            await drain(reply, meter)
        other.cancel()
        assert 39 * 2**20 < meter.read <= 40 * 2**20
        assert meter.longest <= 128 * 1024
        assert meter.grown < 8 * MB
        assert ticks > 300
        with pytest.raises(InvalidUpstreamAnswer, match="sent a body larger than 16 MiB"):
            await (await client.post(upstream.url, {}, b"{}")).read()


@on_both_loops
async def test_a_caller_cancelled_in_the_middle_of_decompression_closes_the_socket() -> None:
    """fault: U11"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("content-encoding: gzip", f"content-length: {10**6}"), _bomb(30))
        await peer.gone()

    async def read() -> None:
        async for _ in await client.post(upstream.url, {}, b"{}"):
            started.set()

    started = asyncio.Event()
    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reading = asyncio.ensure_future(read())
        await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


FLOODS = {
    "a header": b"HTTP/1.1 200 OK\r\nx: ",
    "interim answers": b"",
    "a chunk extension": STREAM + b"1;",
    "a trailer": STREAM + b"0\r\nx: ",
}


@pytest.mark.parametrize(("start", "more"), [(FLOODS[name], name) for name in FLOODS], ids=FLOODS)
@on_both_loops
async def test_framing_without_end_is_cut_at_the_cap_of_a_head(start: bytes, more: str) -> None:
    """fault: U9"""
    piece = head(status="100 Continue") * 40 if more == "interim answers" else b"y" * 1000

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        while True:
            await peer.send(piece)

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(InvalidUpstreamAnswer, match="sent more than 64 KiB of headers or framing"):
            await (await client.post(upstream.url, {}, b"{}")).read()


@on_both_loops
async def test_a_head_over_its_cap_is_refused_even_if_it_comes_at_once() -> None:
    """fault: U9"""
    lines = [f"x-{number}: {'y' * 90}" for number in range(700)]
    async with Faulty(answering(whole(b"", *lines))) as upstream, aclosing(UpstreamHttpClient()) as client:
        with pytest.raises(InvalidUpstreamAnswer, match="sent more than 64 KiB of headers or framing"):
            await client.post(upstream.url, {}, b"{}")


@on_both_loops
async def test_tiny_chunks_by_the_hundred_thousand_cost_time_in_proportion() -> None:
    """fault: U9"""
    block = chunk(b"x") * 10_000

    async def script(peer: Peer) -> None:
        request = await peer.request()
        assert request is not None
        await peer.send(STREAM)
        for _ in range(int(request.body)):
            await peer.send(block)
        await peer.send(chunk(b""))

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        spent = []
        for blocks in (10, 40):
            started = time.process_time()
            reply = await client.post(upstream.url, {}, str(blocks).encode())
            assert len(await reply.read()) == blocks * 10_000
            spent.append(time.process_time() - started)
        assert spent[1] < 4 * spent[0] * 2.5


@on_both_loops
async def test_one_byte_slices_give_identical_bytes() -> None:
    """fault: U10"""
    body = 'data: {"text": "größer 🙂"}\r\n\r\n'.encode() * 40
    pieces = [body[start : start + 37] for start in range(0, len(body), 37)]
    squeezed = zlib.compress(body, wbits=31)
    answers = [
        chunked(*pieces).replace(b"0\r\n\r\n", b"0\r\ntrailer: x\r\n\r\n"),
        whole(body),
        head("content-encoding: gzip", f"content-length: {len(squeezed)}") + squeezed,
    ]

    async def script(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.slices(answer)

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        for _ in answers:
            assert await collect(await client.post(upstream.url, {}, b"{}")) == body
        assert len(upstream.peers) == 1


@on_both_loops
async def test_a_reader_that_does_not_read_pauses_the_upstream() -> None:
    """fault: U9"""
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        sock: socket.socket = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        await peer.request()
        await peer.send(head(f"content-length: {64 * MB}"))
        for _ in range(640):
            await peer.send(b"x" * 100_000)
            sent += 100_000

    async with (
        Faulty(script) as upstream,
        aclosing(UpstreamHttpClient(caps=ResponseSizeLimits(stream=10**9))) as client,
    ):
        reply = await client.post(upstream.url, {}, b"{}")
        seen = -1
        while seen != sent:  # until the upstream cannot get rid of another byte
            seen = sent
            await asyncio.sleep(0.1)
        assert sent < 16 * MB, "the kernel's buffers and ours, but not all of it"
        assert reply._reader.buffered <= 128 * 1024 + 256 * 1024
        assert len(await collect(reply)) == 64 * MB
