"""Run scripts on a Redis that may be unavailable, in batches and with a timeout.

Requests that come together share one round trip, so that a burst waits for Redis and not for its own queue. When Redis
does not reply in time, or with what no script returns, it is not used for a pause, and all callers get None at once.
It must not know what is counted.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from toolgate.change_notifications.connect_redis import redis_client

MOST = 256  # scripts of one round trip

# In how many steps the timeout is waited for: a busy event loop is late for each, so that its own delay is not counted
# as one of Redis.
_WAITS = 16


class _Call(Struct, eq=False):
    """A call of a script that waits for its reply."""

    script: int
    keys: Sequence[str]
    arguments: Sequence[str | int]
    reply: asyncio.Future[list[int] | None]


class LuaScript(Struct, frozen=True):
    """The source of a script, and how many numbers it returns."""

    source: str
    numbers: int


class RedisScripts:
    """Runs scripts by their index."""

    def __init__(
        self,
        url: str,
        scripts: Sequence[LuaScript],
        *,
        timeout: float,
        pause: float,
        on_error: Callable[[str], None],
        on_recovery: Callable[[str], None],
    ) -> None:
        """`on_error` is called once per outage, and `on_recovery` at its end; ValueError without the package `redis`."""
        self._redis = redis_client(url)
        self._scripts = [self._redis.register_script(script.source) for script in scripts]
        self._numbers = [script.numbers for script in scripts]
        self._timeout = timeout
        self._pause = pause
        self._on_error = on_error
        self._on_recovery = on_recovery
        self._is_down = False
        self._waiting: list[_Call] = []
        self._sending: asyncio.Task[None] | None = None
        self.paused_until = 0.0

    @property
    def paused(self) -> bool:
        """Whether Redis is not used now, because it failed."""
        return time.monotonic() < self.paused_until

    async def run(self, script: int, keys: Sequence[str], arguments: Sequence[str | int]) -> list[int] | None:
        """Return the numbers of a script; None if Redis fails, replies too late or is paused."""
        if self.paused:
            return None
        loop = asyncio.get_running_loop()
        call = _Call(script, keys, arguments, loop.create_future())
        self._waiting.append(call)
        # One task sends for all: what arrives while it waits for a reply goes into its next round trip.
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send())
        return await call.reply

    async def aclose(self) -> None:
        """Run what waits, and close the connections."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            batch = [one for one in batch if not one.reply.done()]  # their callers were cancelled
            for one, reply in zip(batch, await self._run_batch(batch), strict=True):
                if not one.reply.done():
                    one.reply.set_result(reply)

    async def _run_batch(self, batch: Sequence[_Call]) -> Sequence[list[int] | None]:
        if self.paused:
            return [None] * len(batch)
        running = asyncio.get_running_loop().create_task(self._execute(batch))
        for _ in range(_WAITS):
            await asyncio.wait({running}, timeout=self._timeout / _WAITS)
            if running.done():
                break
        else:
            running.cancel()
            await asyncio.wait({running})
        error = TimeoutError() if running.cancelled() else running.exception()
        if error is None:
            if self._is_down:
                self._is_down = False
                self._on_recovery("limits are counted over all nodes again")
            return running.result()
        # Any kind of error: the parser of `redis` raises many at malformed replies.
        if not self._is_down:
            self._is_down = True
            self._on_error(f"{type(error).__name__}: limits are counted by this node alone")
        self.paused_until = time.monotonic() + self._pause
        await self._redis.connection_pool.disconnect()  # a late reply would be taken for that of another call
        return [None] * len(batch)

    async def _execute(self, batch: Sequence[_Call]) -> list[list[int]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for one in batch:
                await self._scripts[one.script](one.keys, one.arguments, client=pipeline)
            replies = await pipeline.execute()
        # Redis may be shared: what another program stored under our names makes a script return something else.
        checked: list[list[int]] = []
        for one, reply in zip(batch, replies, strict=True):
            numbers = reply if type(reply) is list else [reply]
            if len(numbers) != self._numbers[one.script] or any(type(number) is not int for number in numbers):
                raise ValueError("not what the script returns")
            checked.append(numbers)
        return checked
