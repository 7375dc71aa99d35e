"""Notify subscribers that something has changed on a topic: an approval, a stream, a run.

Only the name of the topic is sent; what has changed is in the database, where a subscriber looks for it. So a message that
is lost, or arrives twice, costs nothing but time: subscribers also look every `poll_seconds`.

    async with notifier.subscribe("run/17") as event:
        while not await ended("run/17"):
            await wait_for(event, notifier.poll_seconds)

It must not know what topics stand for.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

from toolgate.change_notifications.connect_redis import redis_client
from toolgate.conversation.random_ids import random_suffix

CHANNEL = "toolgate:changed"
# For which a subscriber waits for Redis: a request waits with it.
REDIS_TIMEOUT = 0.15
# That connecting or sending may take: no request waits for it, and a starting server is busy for longer than a healthy
# Redis.
SEND_SECONDS = 5.0
# For which Redis is not used after it failed.
RETRY_AFTER = 1.0
# Topics that may wait to be sent; more than that pile up only while Redis does not answer.
_MAX_UNSENT = 4096


class ChangeNotifier(Protocol):
    """Notifies subscribers, in this process or in all, that something has changed."""

    # How often a subscriber looks for changes without being notified.
    poll_seconds: float

    def publish(self, topic: str) -> None:
        """Notify the subscribers of the topic; returns at once and never fails."""

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """Open an event that is set by every notification; clear it before looking for what has changed."""

    async def aclose(self) -> None:
        """Send what is unsent and close the connections."""


class LocalChangeNotifier:
    """Notifies subscribers in this process only; changes made by other processes are found by polling."""

    poll_seconds = 0.25

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def publish(self, topic: str) -> None:
        for event in self._events.get(topic, ()):
            event.set()

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[asyncio.Event]:
        event = asyncio.Event()
        events = self._events.setdefault(topic, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                self._events.pop(topic, None)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


class RedisChangeNotifier:
    """Notifies subscribers in every process that uses the same Redis; while Redis is away, in this process only."""

    poll_seconds = 1.0

    def __init__(
        self,
        url: str,
        *,
        on_error: Callable[[str], None] = lambda _: None,
        on_recovery: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect lazily; ValueError without the package `redis`.

        `on_error` is called once per outage of Redis, and `on_recovery` at its end.
        """
        self._local = LocalChangeNotifier()
        self._node = random_suffix(12)
        self._redis = redis_client(url, socket_connect_timeout=SEND_SECONDS)
        self._on_error = on_error
        self._on_recovery = on_recovery
        self._is_down = False
        self._retry_at = 0.0
        self._unsent: dict[str, None] = {}  # a dict and not a set: topics are sent in their order
        self._sender: asyncio.Task[None] | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    def publish(self, topic: str) -> None:
        self._local.publish(topic)
        if time.monotonic() < self._retry_at or len(self._unsent) >= _MAX_UNSENT:
            return
        self._unsent[topic] = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[asyncio.Event]:
        if self._receiver is None:  # a process without subscribers needs no connection for them
            self._receiver = asyncio.get_running_loop().create_task(self._receive())
        async with self._local.subscribe(topic) as event:
            if not self._subscribed.is_set():  # what is sent before would not be received
                await wait_for(self._subscribed, REDIS_TIMEOUT)
            yield event

    async def aclose(self) -> None:
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=REDIS_TIMEOUT)
            self._sender.cancel()
            await asyncio.wait({self._sender})
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait({self._receiver})
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _send(self) -> None:
        """Send topics until none are left; a topic that has changed twice meanwhile is sent once."""
        while self._unsent:
            topics, self._unsent = self._unsent, {}  # topics that come while these are sent go with the next round
            try:
                async with asyncio.timeout(SEND_SECONDS), self._redis.pipeline(transaction=False) as pipeline:
                    for topic in topics:
                        pipeline.publish(CHANNEL, f"{self._node} {topic}")
                    await pipeline.execute()
                self._note_success()
            except redis_errors() as error:
                self._unsent = {}  # not sent later: subscribers also poll, and so find what they were not notified of
                self._note_failure(error)

    async def _receive(self) -> None:
        """Notify local subscribers of what other processes send; connect again whenever the connection is lost."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=False) as channel:
                    await channel.subscribe(CHANNEL)
                    async for message in channel.listen():
                        if message["type"] == "subscribe":
                            self._note_success()
                            self._subscribed.set()
                        elif message["type"] == "message":
                            node, _, topic = message["data"].decode(errors="replace").partition(" ")
                            if node != self._node:  # our own subscribers were notified by `publish`
                                self._local.publish(topic)
            except redis_errors() as error:
                self._subscribed.clear()
                self._note_failure(error)
            await asyncio.sleep(RETRY_AFTER)

    def _note_failure(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_AFTER
        if not self._is_down:
            self._is_down = True
            self._on_error(f"{type(error).__name__}: changes are published to this process only")

    def _note_success(self) -> None:
        if self._is_down:
            self._is_down = False
            self._on_recovery("changes are published to all nodes again")


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set or the time is over; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def redis_errors() -> tuple[type[Exception], ...]:
    """What is raised when Redis is away, refuses, or sends a reply that the parser of `redis` cannot read."""
    from redis.exceptions import RedisError

    return (RedisError, OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
