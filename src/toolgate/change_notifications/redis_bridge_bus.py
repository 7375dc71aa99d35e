"""Carry messages between processes through Redis: to one member, or to all others.

A message to a member is published on a channel of its own; none is stored, so that what is sent while Redis is away is lost,
and those who wait for an answer get an error. Redis counts the receivers: a member that had one and has none is gone.
It must not know what messages mean.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from toolgate.change_notifications.connect_redis import redis_client
from toolgate.change_notifications.notifier import RETRY_AFTER, redis_errors

CHANNEL = "toolgate:bridge"
_SEND_SECONDS = 5.0
_CONNECT_SECONDS = 1.0
_MAX_UNSENT_BYTES = 64 * 1024 * 1024
_SEPARATOR = b" "  # `member {"type": …}`: the sender, then the message


class RedisBridgeBus:
    """One process's connection; `lost` is called with None when Redis is away, because no process can be reached then."""

    heartbeat = True

    def __init__(self, url: str) -> None:
        """Connect lazily. ValueError without the package `redis`."""
        self._redis = redis_client(url, socket_connect_timeout=_CONNECT_SECONDS)
        self._member = ""
        self._receive: Callable[[str, bytes], None] = lambda sender, body: None
        self._lost: Callable[[str | None], None] = lambda member: None
        self._unsent: deque[tuple[str | None, bytes]] = deque()
        self._unsent_bytes = 0
        self._reached: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._receiver: asyncio.Task[None] | None = None

    def open(self, member: str, receive: Callable[[str, bytes], None], lost: Callable[[str | None], None]) -> None:
        """Join as this member."""
        self._member, self._receive, self._lost = member, receive, lost
        self._receiver = asyncio.get_running_loop().create_task(self._listen())

    def send(self, to: str | None, message: bytes) -> None:
        """Send a message to one member or to all others; what cannot be sent is dropped, and all members count as lost."""
        if self._unsent_bytes + len(message) > _MAX_UNSENT_BYTES:
            self._drop()
            return
        self._unsent.append((to, message))
        self._unsent_bytes += len(message)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def aclose(self) -> None:
        """Send what is unsent and close the connections."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=_SEND_SECONDS)
            self._sender.cancel()
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait({self._receiver})
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _send(self) -> None:
        while self._unsent:
            to, message = self._unsent.popleft()
            self._unsent_bytes -= len(message)
            channel = CHANNEL if to is None else f"{CHANNEL}:{to}"
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    receivers = await self._redis.publish(channel, self._member.encode() + _SEPARATOR + message)
            except redis_errors():
                self._drop()
                continue
            if to is not None and receivers:
                self._reached.add(to)
            # A count of none is no proof by itself: a Redis of several nodes counts those of one node.
            elif to is not None and to in self._reached:
                self._reached.discard(to)
                self._lost(to)

    def _drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        self._lost(None)

    async def _listen(self) -> None:
        """Pass on what other members send; connect again whenever the connection is lost."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(CHANNEL, f"{CHANNEL}:{self._member}")
                    async for message in channel.listen():
                        sender, _, body = message["data"].partition(_SEPARATOR)
                        if sender != self._member.encode():
                            self._receive(sender.decode("ascii", "replace"), body)
            except redis_errors():
                self._lost(None)
            await asyncio.sleep(RETRY_AFTER)
