"""A gateway on real sockets over four upstreams, all of them played by one scripted model.

The upstream is a Toolgate of its own that serves the script in all four dialects, so a test says what the model answers
and sees both what the client got and what the model was asked, whichever two dialects lie between them.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import uvloop

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.config.settings import LogSettings, ServerSettings
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ModelStream
from toolgate.http.listener import listening
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource

UPSTREAMS = ("openai_chat", "openai_responses", "anthropic", "ollama")
QUIET = LogSettings(level="error")
MEMORY = Secret("sqlite://")

Opened = TypeVar("Opened")


class Player:
    """Plays whatever script is on."""

    def __init__(self) -> None:
        self.scripted = ScriptedModel([])

    async def ask(self, request: ModelRequest) -> ModelStream:
        """The script's next answer."""
        return await self.scripted.ask(request)


class Stage:
    """The gateway at `url`, whose models are named after the upstream's dialect, and the script behind it."""

    def __init__(self, url: str, player: Player, gate: Toolgate) -> None:
        self.url = url
        self.gate = gate
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script; the model that plays it shows the requests that reached it."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted


def upstream_config() -> Config:
    """The server that plays all upstreams."""
    played = ModelConfig(name="played", targets=(TargetConfig(upstream=BUILTIN, model="played"),))
    return Config(server=ServerSettings(port=0), models=(played,), storage=MEMORY, log=QUIET)


def gateway_config(upstream_url: str, **changes: Any) -> Config:
    """A gateway with one model for each dialect that its upstream may speak; `upstreams` and `models` add to these."""
    bases = dict.fromkeys(UPSTREAMS, f"{upstream_url}/v1") | {"ollama": upstream_url}
    upstreams = {name: UpstreamConfig(name=name, dialect=name, base_url=base) for name, base in bases.items()}  # type: ignore[arg-type]
    models = [
        ModelConfig(name=name, targets=(TargetConfig(upstream=name, model="played"),), retries=0) for name in UPSTREAMS
    ]
    return Config(
        server=ServerSettings(port=0),
        upstreams={**upstreams, **changes.pop("upstreams", {})},
        models=(*models, *changes.pop("models", ())),
        **{"storage": MEMORY, "log": QUIET, **changes},
    )


@contextmanager
def in_a_thread(place: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """What the place gives when it is entered, in the loop of a thread of its own, so that blocking clients can be used."""
    given: Future[tuple[Opened, Callable[[], object]]] = Future()

    async def stay() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with place as opened:
            given.set_result((opened, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    def live() -> None:
        try:
            uvloop.run(stay())
        except BaseException as error:
            if given.done():
                raise
            given.set_exception(error)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    opened, leave = given.result(60)
    try:
        yield opened
    finally:
        leave()
        thread.join(60)


def served(gate: Toolgate) -> AbstractContextManager[str]:
    """The server in a thread of its own; its URL."""
    return in_a_thread(listening(gate))


@asynccontextmanager
async def _open_stage(sources: tuple[ToolSource, ...], changes: Mapping[str, Any]) -> AsyncIterator[Stage]:
    player = Player()
    async with (
        listening(Toolgate(upstream_config(), {"played": player})) as upstream_url,
        listening(gate := Toolgate(gateway_config(upstream_url, **changes), sources=sources)) as url,
    ):
        yield Stage(url, player, gate)


def on_stage(*sources: ToolSource, **changes: Any) -> AbstractContextManager[Stage]:
    """Gateway and upstream in a thread of their own.

    `sources` bring the gateway's tools, `changes` are made to its configuration.
    """
    return in_a_thread(_open_stage(sources, changes))
