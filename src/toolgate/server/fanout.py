"""Telling every process that something has changed under a name: an approval, a stream, a run.

Only the name travels; what has changed is in the database, where whoever waits looks for it. So an announcement that is
lost, or comes twice, costs nothing but time: those who wait look for themselves every `look_seconds`, too.

    async with fanout.heard("run/17") as event:
        while not await ended("run/17"):
            await pause(event, fanout.look_seconds)

It must not know what names stand for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from toolgate.conversation import ids
from toolgate.tools.approvals.waiting import Waiting

if TYPE_CHECKING:
    from redis.asyncio import Redis

CHANNEL = "toolgate:changed"
PATIENCE = 0.15
"""Seconds that Redis may take to accept an announcement."""

APART = 1.0
"""Seconds for which Redis is left alone after it failed."""

_LONGEST = 4096
"""Names that wait to be told; more than that at once are those of a Redis that is gone."""


class Fanout(Protocol):
    """Tells those who wait, in this process or in all, that something has changed."""

    look_seconds: float
    """How often whoever waits should look without being told."""

    def announce(self, topic: str) -> None:
        """Something has changed under this name; returns at once and never fails."""

    def heard(self, topic: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set at every such announcement; clear it before looking for what has changed."""

    async def aclose(self) -> None:
        """Let go of what is open."""


class LocalFanout(Waiting):
    """Reaches this process alone: what others do is found by looking."""

    look_seconds = 0.25

    async def aclose(self) -> None:
        """Let go of what is open: nothing."""


class SharedFanout:
    """Reaches every process that has the same Redis; while that is gone, this process alone."""

    look_seconds = 1.0

    def __init__(self, url: str, *, on_trouble: Callable[[str], None] = lambda _: None) -> None:
        """`on_trouble` hears when Redis is gone; ValueError without the package `redis`."""
        self._here = Waiting()
        self._node = ids.mint(12)
        self._redis = _client(url)
        self._on_trouble = on_trouble
        self._troubled = False
        self._alone_until = 0.0
        self._unsent: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    def announce(self, topic: str) -> None:
        """Something has changed under this name."""
        self._here.announce(topic)
        if time.monotonic() < self._alone_until or len(self._unsent) >= _LONGEST:
            return
        self._unsent[topic] = None
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    @asynccontextmanager
    async def heard(self, topic: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set at every such announcement."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        async with self._here.heard(topic) as event:
            if not self._subscribed.is_set():
                await pause(self._subscribed, PATIENCE)
            yield event

    async def aclose(self) -> None:
        """Tell what is left to tell, and close the connections."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _send(self) -> None:
        """Publish names until there are none; what came twice meanwhile is told once."""
        while self._unsent:
            topics, self._unsent = self._unsent, {}
            try:
                async with asyncio.timeout(PATIENCE), self._redis.pipeline(transaction=False) as pipeline:
                    for topic in topics:
                        pipeline.publish(CHANNEL, f"{self._node} {topic}")
                    await pipeline.execute()
            except _failures() as error:
                self._unsent = {}
                self._failed(error)

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except _failures() as error:
                self._subscribed.clear()
                self._failed(error)
            await asyncio.sleep(APART)

    async def _hear(self) -> None:
        """Pass on what other processes announce, until the connection is lost."""
        async with self._redis.pubsub(ignore_subscribe_messages=False) as pubsub:
            await pubsub.subscribe(CHANNEL)
            async for message in pubsub.listen():
                if message["type"] == "subscribe":
                    self._troubled = False
                    self._subscribed.set()
                elif message["type"] == "message":
                    node, _, topic = message["data"].decode().partition(" ")
                    if node != self._node:
                        self._here.announce(topic)

    def _failed(self, error: Exception) -> None:
        self._alone_until = time.monotonic() + APART
        if not self._troubled:
            self._troubled = True
            self._on_trouble(f"{type(error).__name__}: changes are told to this process alone")


async def pause(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but not longer; whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _client(url: str) -> "Redis":
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ValueError("redis: several nodes need the Python package `redis`") from error
    return Redis.from_url(url, socket_connect_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))


def _failures() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return (RedisError, OSError, TimeoutError)
