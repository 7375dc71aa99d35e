"""Supervise the engine: download the weights, start the process, and restart it when it has died.

Knows nothing of the prompts.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import GatewayOverloaded, UpstreamUnavailable
from toolgate.upstreams.local import frames
from toolgate.upstreams.local.engine_process import EngineFault, EngineProcess
from toolgate.upstreams.local.fetch import DownloadProgress, WeightsUnavailable, fetch, locate
from toolgate.upstreams.local.state import LocalModelState, OnState, Phase
from toolgate.upstreams.local.weights_cache import WeightsCache, default_folder
from toolgate.upstreams.local.weights_catalog import DEFAULT, DownloadAbandoned, Weights

# Seconds between two starts, doubled each time; after an engine that ran for `_STEADY` they begin again.
_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY = 0.5, 30.0, 60.0
# Each reported state is a line in the log.
_EVERY_PERCENT = 5
_RETRY = 10.0

Fetch: TypeAlias = Callable[[Weights, WeightsCache, Callable[[DownloadProgress], None], threading.Event], Path]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """The weights and their resources: tokens of context, threads, MiB for the prompt cache.

    `model` is a known name, one that was added to the cache, or the path of a GGUF file. `queue` requests may wait, each up
    to `wait` seconds; so long a request also waits for the weights to be fetched and loaded.
    """

    model: str = DEFAULT
    folder: Path | None = None
    context: int = 8192
    threads: int | None = None
    cache: int = 256
    queue: int = 16
    wait: float = 120.0
    max_tokens: int = 2048


def own_processors() -> int:
    """Return the number of CPUs that this process may use."""
    # A container may be bound to fewer CPUs than `cpu_count` sees. Not every system has this function.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EngineSupervisor:
    """Keeps one engine running."""

    def __init__(self, options: EngineOptions, on_state: OnState, fetch: Fetch = fetch) -> None:
        self._options = options
        self._cache = WeightsCache(options.folder or default_folder(os.environ))
        self._fetch = fetch
        self._on_state = on_state
        self._abandoned = threading.Event()
        self._requested = asyncio.Event()
        self._changed = asyncio.Event()
        self._engine: EngineProcess | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._pause = _FIRST_PAUSE
        self.state = LocalModelState("asleep", options.model, "Not started yet.")

    def start(self) -> None:
        """Start to download and load, unless that was started already."""
        self._requested.set()
        if self._supervising is None:
            self._supervising = asyncio.create_task(self._supervise())

    async def engine(self) -> EngineProcess:
        """Return the engine once it is ready; GatewayOverloaded if that takes long, UpstreamUnavailable if it fails."""
        self.start()
        try:
            async with asyncio.timeout(self._options.wait):
                while self._engine is None or not self._engine.alive:
                    if self.state.phase in ("failed", "closed"):
                        raise UpstreamUnavailable(f"The embedded model cannot answer: {self.state.message}", status=503)
                    await self._changed.wait()
        except TimeoutError:
            text = f"The embedded model is not ready yet. {self.state.message}"
            raise GatewayOverloaded(text, code="model_loading", retry_after=_RETRY) from None
        return self._engine

    async def aclose(self) -> None:
        """End the engine and any download."""
        self._abandoned.set()  # the thread of a download cannot be cancelled: it looks at this event
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait({self._supervising})
        self._set("closed", "The server is shutting down.")

    async def _supervise(self) -> None:
        """Run engines one after the other; after each, the pause before the next is doubled."""
        path: Path | None = None
        while True:
            self._requested.clear()
            try:
                path = path or await self._weights()
                await self._run(path)
            except (WeightsUnavailable, EngineFault) as error:
                path = None  # the file itself may be what is wrong
                self._set("failed", str(error))
                await self._requested.wait()  # the next request makes another attempt
            await asyncio.sleep(self._pause)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    async def _run(self, path: Path) -> None:
        """Run an engine until it dies."""
        self._set("loading", f"{path.name} is being loaded.")
        options, loop = self._options, asyncio.get_running_loop()
        order = frames.EngineLoadFrame(str(path), options.context, options.threads or own_processors(), options.cache)
        engine = await EngineProcess.start(order)
        try:
            began, self._engine = loop.time(), engine
            self._set("ready", f"{path.name} is loaded.", pid=engine.pid)
            how = await engine.ended()
            if loop.time() - began > _STEADY:
                self._pause = _FIRST_PAUSE
            self._engine = None
            self._set("loading", f"{how} It is started again.")
        finally:
            self._engine = None
            await engine.aclose()

    async def _weights(self) -> Path:
        """Return the file of the weights, downloaded in a thread that is joined."""
        found = await asyncio.to_thread(locate, self._options.model, self._cache)
        if isinstance(found, Path):
            return found
        self._set("fetching", f"The weights of {found.name} are being looked for.", 0.0)
        loop = asyncio.get_running_loop()

        def on_state(progress: DownloadProgress) -> None:
            loop.call_soon_threadsafe(self._progressed, progress)

        # Shielded, because a cancelled `to_thread` would return while the thread still writes to the cache.
        fetching = asyncio.ensure_future(asyncio.to_thread(self._fetch, found, self._cache, on_state, self._abandoned))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            self._abandoned.set()
            await asyncio.wait({fetching})
            _ = fetching.exception()  # retrieved, or asyncio would log it as never retrieved
            raise
        except DownloadAbandoned:
            raise WeightsUnavailable("The download was cancelled: no request needs the weights.") from None

    def _progressed(self, progress: DownloadProgress) -> None:
        """Report the progress, but not every chunk."""
        if progress.checking:
            self._set("checking", f"The weights of {progress.weights} are being verified.", 100.0)
            return
        percent = int(progress.percent)
        message = f"{percent} % of the weights of {progress.weights} ({progress.total / 1e9:.1f} GB) are here."
        same_step = (
            self.state.phase == "fetching"
            and percent // _EVERY_PERCENT == int(self.state.percent or 0) // _EVERY_PERCENT
        )
        if same_step:
            self.state = replace(self.state, message=message, percent=progress.percent)
        else:
            self._set("fetching", message, progress.percent)

    def _set(self, phase: Phase, message: str, percent: float | None = None, pid: int | None = None) -> None:
        self.state = LocalModelState(phase, self._options.model, message, percent, pid)
        # Each event is set once and replaced, so that all who wait now are woken and later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_state(self.state)
