"""Sees to it that there is an engine: weights are fetched, the process is started, and started again when it has died.

Knows nothing of what the engine is asked.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Overloaded, Unavailable
from toolgate.upstreams.embedded import frames
from toolgate.upstreams.embedded.cache import Cache, default_folder
from toolgate.upstreams.embedded.errors import Abandoned
from toolgate.upstreams.embedded.fetch import NoWeights, Progress, fetch, locate
from toolgate.upstreams.embedded.process import EngineFault, EngineProcess
from toolgate.upstreams.embedded.state import Phase, State, Tell
from toolgate.upstreams.embedded.weights import DEFAULT, Weights

_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY = 0.5, 30.0, 60.0
_EVERY_PERCENT = 5
_RETRY = 10.0

Fetch: TypeAlias = Callable[[Weights, Cache, Callable[[Progress], None], threading.Event], Path]


class Options(Struct, frozen=True, kw_only=True):
    """Which weights, and what they may use: tokens of context, threads, MiB for the memory of past prompts.

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
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Keeper:
    """Keeps one engine running."""

    def __init__(self, options: Options, tell: Tell, fetch: Fetch = fetch) -> None:
        self._options = options
        self._cache = Cache(options.folder or default_folder(os.environ))
        self._fetch = fetch
        self._tell = tell
        self._abandoned = threading.Event()
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._engine: EngineProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._pause = _FIRST_PAUSE
        self.state = State("asleep", options.model, "Not started yet.")

    def start(self) -> None:
        """Begin to fetch and load, unless that was begun already."""
        self._wanted.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def engine(self) -> EngineProcess:
        """The engine, once it is ready; Overloaded if that takes too long, Unavailable if it cannot be."""
        self.start()
        try:
            async with asyncio.timeout(self._options.wait):
                while self._engine is None or not self._engine.lives:
                    if self.state.phase in ("failed", "closed"):
                        raise Unavailable(f"The embedded model cannot answer: {self.state.message}", status=503)
                    await self._changed.wait()
        except TimeoutError:
            raise Overloaded(self._not_yet(), code="model_loading", retry_after=_RETRY) from None
        return self._engine

    async def aclose(self) -> None:
        """End everything that was started."""
        self._abandoned.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        self._set("closed", "The server is shutting down.")

    def _not_yet(self) -> str:
        return f"The embedded model is not ready yet. {self.state.message}"

    async def _keep(self) -> None:
        path: Path | None = None
        while True:
            self._wanted.clear()
            try:
                path = path or await self._weights()
                await self._run(path)
            except (NoWeights, EngineFault) as error:
                path = None  # the file itself may be what is wrong
                self._set("failed", str(error))
                await self._wanted.wait()  # whoever asks next has it tried again
            await asyncio.sleep(self._pause)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    async def _run(self, path: Path) -> None:
        """Have an engine until it dies."""
        self._set("loading", f"{path.name} is being loaded.")
        options, loop = self._options, asyncio.get_running_loop()
        order = frames.Load(str(path), options.context, options.threads or own_processors(), options.cache)
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
        """The weights' file, fetched by a thread that is not left behind."""
        found = await asyncio.to_thread(locate, self._options.model, self._cache)
        if isinstance(found, Path):
            return found
        self._set("fetching", f"The weights of {found.name} are being looked for.", 0.0)
        loop = asyncio.get_running_loop()

        def tell(progress: Progress) -> None:
            loop.call_soon_threadsafe(self._progressed, progress)

        fetching = asyncio.ensure_future(asyncio.to_thread(self._fetch, found, self._cache, tell, self._abandoned))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            self._abandoned.set()
            await asyncio.wait({fetching})
            _ = fetching.exception()  # nobody wants to know any more
            raise
        except Abandoned:
            raise NoWeights("Nobody wanted the weights any more.") from None

    def _progressed(self, progress: Progress) -> None:
        """Tell of it, but not of every chunk."""
        if progress.checking:
            self._set("checking", f"The weights of {progress.weights} are being verified.", 100.0)
            return
        percent = int(progress.percent)
        message = f"{percent} % of the weights of {progress.weights} ({progress.total / 1e9:.1f} GB) are here."
        told = (
            self.state.phase == "fetching"
            and percent // _EVERY_PERCENT == int(self.state.percent or 0) // _EVERY_PERCENT
        )
        if told:
            self.state = replace(self.state, message=message, percent=progress.percent)
        else:
            self._set("fetching", message, progress.percent)

    def _set(self, phase: Phase, message: str, percent: float | None = None, pid: int | None = None) -> None:
        self.state = State(phase, self._options.model, message, percent, pid)
        self._changed.set()
        self._changed = asyncio.Event()
        self._tell(self.state)
