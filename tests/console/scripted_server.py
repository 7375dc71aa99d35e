"""A server for the console's tests: `echo`, a model that plays what a test puts on, and tools of each kind."""

import asyncio
import base64
import itertools
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from tests.stage import MEMORY, QUIET, Player, in_a_thread
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, ModelConfig, TargetConfig
from toolgate.config.settings import ServerSettings
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.message import Media, Text
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.testing import (
    HARMLESS,
    Entry,
    FakeSource,
    FakeTool,
    Pace,
    ScriptedModel,
    ScriptedModelStream,
    scripted_answer,
)
from toolgate.tools.tool import Annotations, CallProgressUpdate, ToolCallInput, ToolOutput
from toolgate.upstreams.echo import EchoModel

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
HARMFUL = Annotations(read_only=False, destructive=True, idempotent=False, open_world=True)


class ScriptedServer:
    """The server at `url`, and what plays in it."""

    def __init__(
        self, url: str, player: Player, tools: Mapping[str, FakeTool], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.url = url
        self.page = f"{url}/console/"
        self.tools = tools
        self._player = player
        self._loop = loop

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script for the model `played`."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    def play_pieces(self, text: str, size: int) -> None:
        """Put on one answer that comes in pieces of a size: word by word, a long text takes longer to play than to show."""
        pieces = [PartDelta(text[start : start + size]) for start in range(0, len(text), size)]
        events: list[StepEvent] = [StepStart(), PartStart(Text("")), *pieces, PartEnd(Text(text)), StepEnd("stop")]
        self._player.scripted = _Pieces(events)

    def gate(self) -> "Gate":
        """A gate at which an answer or a tool stops until the test opens it."""
        return Gate(self._loop)


class Gate:
    """Lets pass what waits at it, from the thread of a test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self.reached = threading.Event()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        self.reached.set()
        await self._event.wait()

    def after(self, count: int) -> Pace:
        """What lets an answer pass for so many events, and then makes it wait."""
        passed = itertools.count(1)

        async def pace() -> None:
            if next(passed) >= count:
                await self.wait()

        return pace

    def open(self) -> None:
        """Let pass all that wait, and all that come."""
        self._loop.call_soon_threadsafe(self._event.set)


class _Pieces(ScriptedModel):
    """A model that emits these events."""

    def __init__(self, events: list[StepEvent]) -> None:
        super().__init__([])
        self._events = events

    async def ask(self, request: ModelRequest) -> ScriptedModelStream:
        return scripted_answer(self._events)


def console_tools() -> dict[str, FakeTool]:
    """One tool of each kind: harmless, harmful, failing, and one that returns an image."""

    def fail(_: Mapping[str, Any]) -> str:
        raise RuntimeError("the wheel came off")

    image = Media("image", "image/png", base64.b64encode(PIXEL).decode())
    found = [
        FakeTool("add", lambda given: str(given["a"] + given["b"])),
        FakeTool("send_mail", lambda given: f"sent to {given['to']}", annotations=HARMFUL),
        FakeTool("broken", fail),
        FakeTool("draw", lambda _: ToolOutput((Text("a picture"), image))),
        ReportingTool("steps", lambda _: "counted", annotations=HARMLESS),
    ]
    return {tool.spec.name: tool for tool in found}


class ReportingTool(FakeTool):
    """A tool that reports its progress, and ends when the test lets it."""

    gate: Gate | None = None

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Report half of the work, then wait."""
        invocation.report(CallProgressUpdate("halfway", 1, 2))
        if self.gate is not None:
            await self.gate.wait()
        return await super().invoke(invocation)


def scripted_server(*tools: str, **changes: Any) -> AbstractContextManager[ScriptedServer]:
    """The server in a thread of its own, with these tools or all; `changes` are made to its configuration."""
    return in_a_thread(_open(tools, changes))


@asynccontextmanager
async def _open(names: Collection[str], changes: Mapping[str, Any]) -> AsyncIterator[ScriptedServer]:
    models = tuple(
        ModelConfig(name=name, targets=(TargetConfig(upstream=BUILTIN, model=name),)) for name in ("echo", "played")
    )
    config = Config(**{"server": ServerSettings(port=0), "models": models, "storage": MEMORY, "log": QUIET, **changes})
    player = Player()
    tools = {name: tool for name, tool in console_tools().items() if not names or name in names}
    gate = Toolgate(config, {"echo": EchoModel(), "played": player}, sources=[FakeSource(*tools.values())])
    async with listening(gate) as url:
        yield ScriptedServer(url, player, tools, asyncio.get_running_loop())
