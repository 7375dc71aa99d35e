"""Lease the engine to one answer at a time. Knows nothing of prompts.

A machine has one engine: a worker process uses the pool of its supervisor (`workers/shared_engine.py`) instead of its own.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.upstreams.local import frames
from toolgate.upstreams.local.engine_supervisor import EngineOptions, EngineSupervisor, Fetch
from toolgate.upstreams.local.fetch import fetch
from toolgate.upstreams.local.queue import EngineTurnQueue
from toolgate.upstreams.local.state import LocalModelState, OnState


class TextGeneration(Protocol):
    """One generation under way."""

    def __aiter__(self) -> AsyncIterator[frames.GenerationFrame]:
        """Yield frames up to the one that ends or fails the generation; EngineFault if the engine ends before."""

    def cancel(self) -> None:
        """Stop it, unless it is over."""


class GenerationEngine(Protocol):
    """Generates text."""

    def generate(self, order: frames.EngineGenerateFrame, over: Callable[[], None]) -> TextGeneration:
        """Start a generation; `over` is called as soon as it ends."""


class EngineLease(Struct, frozen=True):
    """The engine for one answer; it must be released, also more than once."""

    engine: GenerationEngine
    release: Callable[[], None]


class EngineLeaseProvider(Protocol):
    """Leases the engine, one answer at a time."""

    @property
    def state(self) -> LocalModelState:
        """The state of the model."""

    def start(self) -> None:
        """Start to download and load in the background."""

    async def lease(self, caller: str) -> EngineLease:
        """Return a lease; callers take turns. GatewayOverloaded or UpstreamUnavailable if there is no engine."""

    async def aclose(self) -> None:
        """Release it."""


class OwnEngineProvider:
    """The engine in a child process."""

    def __init__(self, options: EngineOptions, on_state: OnState = lambda state: None, fetch: Fetch = fetch) -> None:
        self._supervisor = EngineSupervisor(options, on_state, fetch)
        self._queue = EngineTurnQueue(options.queue, options.wait)

    @property
    def state(self) -> LocalModelState:
        """The state of the model, and the length of its queue."""
        return replace(self._supervisor.state, waiting=self._queue.waiting)

    def start(self) -> None:
        """Start to download and load in the background."""
        self._supervisor.start()

    async def lease(self, caller: str) -> EngineLease:
        """Return a lease of the engine; callers take turns."""
        await self._supervisor.engine()  # before queueing: while there is no engine, a turn would be of no use
        turn = await self._queue.acquire(caller)
        try:
            # Once more: the engine may have been started again while this request waited for its turn.
            return EngineLease(await self._supervisor.engine(), turn.release)
        except BaseException:
            turn.release()
            raise

    async def aclose(self) -> None:
        """End the engine and any download."""
        await self._supervisor.aclose()
