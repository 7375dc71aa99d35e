"""Running scripts on a Redis that may be away: all that wait in one go, and nobody for long.

Requests that come together share one round trip, so that a burst waits for Redis and not for its own queue. When Redis
does not answer in time it is left alone for a while, and everybody hears so at once. It must not know what is counted.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from redis.asyncio import Redis

MOST = 256
"""Scripts of one round trip."""

_LOOKS = 16
"""How often is looked for an answer within the patience: an event loop that is busy itself is late for each look, so that
its own delay is not held against Redis."""


class _Waiting(Struct, eq=False):
    """Somebody who waits for what a script gives."""

    script: int
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: asyncio.Future[list[int] | None]


class Scripts:
    """Some scripts, by their numbers."""

    def __init__(
        self,
        url: str,
        sources: Sequence[str],
        *,
        patience: float,
        apart: float,
        on_trouble: Callable[[str], None],
    ) -> None:
        """`on_trouble` hears once of each time that Redis is left alone; ValueError without the package `redis`."""
        self._redis = _client(url)
        self._scripts = [self._redis.register_script(source) for source in sources]
        self._patience = patience
        self._apart = apart
        self._on_trouble = on_trouble
        self._failures = _failures()
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self.alone_until = 0.0

    @property
    def alone(self) -> bool:
        """Whether Redis is left alone now."""
        return time.monotonic() < self.alone_until

    async def run(self, script: int, keys: Sequence[str], arguments: Sequence[str | int]) -> list[int] | None:
        """What the script gives; None if Redis does not answer in time, or is left alone."""
        if self.alone:
            return None
        loop = asyncio.get_running_loop()
        waiting = _Waiting(script, keys, arguments, loop.create_future())
        self._waiting.append(waiting)
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send())
        return await waiting.answer

    async def aclose(self) -> None:
        """Answer those who wait, and close the connections."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            batch = [one for one in batch if not one.answer.done()]  # those who left want nothing
            for one, said in zip(batch, await self._answers(batch), strict=True):
                if not one.answer.done():
                    one.answer.set_result(said)

    async def _answers(self, batch: Sequence[_Waiting]) -> Sequence[list[int] | None]:
        if self.alone:
            return [None] * len(batch)
        running = asyncio.get_running_loop().create_task(self._execute(batch))
        for _ in range(_LOOKS):
            await asyncio.wait({running}, timeout=self._patience / _LOOKS)
            if running.done():
                break
        else:
            running.cancel()
            await asyncio.wait({running})
            await self._redis.connection_pool.disconnect()  # what is still to come would answer somebody else
        return self._outcome(running, len(batch))

    def _outcome(self, running: "asyncio.Task[list[list[int] | None]]", count: int) -> Sequence[list[int] | None]:
        error = TimeoutError() if running.cancelled() else running.exception()
        if error is None:
            return running.result()
        if not isinstance(error, self._failures):
            raise error
        if not self.alone:
            self._on_trouble(f"{type(error).__name__}: limits are counted by this node alone")
        self.alone_until = time.monotonic() + self._apart
        return [None] * count

    async def _execute(self, batch: Sequence[_Waiting]) -> list[list[int] | None]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for one in batch:
                await self._scripts[one.script](one.keys, one.arguments, client=pipeline)
            return [_numbers(said) for said in await pipeline.execute()]


def _numbers(said: Any) -> list[int]:
    return said if isinstance(said, list) else [int(said)]


def _client(url: str) -> "Redis":
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ValueError("redis: limits shared by several nodes need the Python package `redis`") from error
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0))


def _failures() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return (RedisError, OSError, TimeoutError)
