"""A registry for tests, and a server that shows it over MCP on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import jsonschema_rs

from toolgate.config import Config, Key, Secret
from toolgate.config.settings import Server
from toolgate.conversation.errors import NotFound
from toolgate.conversation.message import Text
from toolgate.server.app import App, Endpoint
from toolgate.server.callers.auth import Caller, Keys
from toolgate.server.edge.listen import listening
from toolgate.server.endpoints import Pace
from toolgate.server.mcp import words
from toolgate.server.mcp.http import Mcp
from toolgate.server.mcp.sessions import Sessions
from toolgate.server.origins import Origins
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.traced import Traced
from toolgate.tools.tool import OnChange, Output, Tell, ToolFailure, ToolSpec

Run = Callable[[Mapping[str, Any], Tell], Awaitable[Output]]


def says(text: str) -> Output:
    return Output((Text(text),))


def tool(name: str, run: Run | Output | str = "done", **fields: Any) -> tuple[ToolSpec, Run]:
    """A tool that does something, or always gives the same."""
    output = says(run) if isinstance(run, str) else run

    async def always(arguments: Mapping[str, Any], tell: Tell) -> Output:
        assert isinstance(output, Output)
        return output

    spec = ToolSpec(name=name, source="test", **{"description": f"The tool {name}.", **fields})
    return spec, run if callable(run) else always


class FakeDoor:
    """Shows every tool to everybody, save what `hidden` names by caller; `calls` keeps who called what."""

    def __init__(self, *tools: tuple[ToolSpec, Run], hidden: Mapping[str, set[str]] | None = None) -> None:
        self.all = {spec.name: (spec, run) for spec, run in tools}
        self.calls: list[tuple[str, str, dict[str, Any], str, str]] = []
        self.listeners: set[OnChange] = set()
        self._hidden = hidden or {}

    def tools(self, caller: Caller) -> Sequence[ToolSpec]:
        hidden = self._hidden.get(caller.name, set())
        return [spec for spec, _ in self.all.values() if not spec.private and spec.name not in hidden]

    def find(self, caller: Caller, name: str) -> ToolSpec | None:
        return next((spec for spec in self.tools(caller) if spec.name == name), None)

    async def call(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], text: str, tell: Tell, session: str
    ) -> Output:
        spec = self.find(caller, name)
        if spec is None:
            raise NotFound(f"There is no tool {name}.")
        self.calls.append((caller.name, name, dict(arguments), text, session))
        for wrong in jsonschema_rs.validator_for(dict(spec.input_schema)).iter_errors(dict(arguments)):
            raise ToolFailure(f"The arguments do not fit: {wrong.message}")
        return await self.all[name][1](arguments, tell)

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        self.listeners.add(on_change)
        return lambda: self.listeners.discard(on_change)

    def add(self, spec: ToolSpec, run: Run) -> None:
        """Bring a new tool and say so."""
        self.all[spec.name] = (spec, run)
        for listener in tuple(self.listeners):
            listener()


class Waiting:
    """A tool that waits until it is let go; `begun` and `cancelled` tell what became of a call."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, arguments: Mapping[str, Any], tell: Tell) -> Output:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return says("released")


def key(name: str, *scopes: str) -> Key:
    """A key whose text is its name."""
    return Key(name=name, key=Secret(f"key-of-{name}"), scopes=scopes or ("tools",))


class Gate:
    """An ASGI application that is nothing but the MCP endpoint."""

    def __init__(self, mcp: Mcp, config: Config, traced: Traced) -> None:
        endpoints = [
            Endpoint("POST", "/mcp", mcp.post, words, "tools"),
            Endpoint("GET", "/mcp", mcp.get, words, "tools"),
            Endpoint("DELETE", "/mcp", mcp.delete, words, "tools"),
        ]
        self._app = App(endpoints, {"/": words}, Keys(config.keys), Origins(config), traced)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)
            return
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


@asynccontextmanager
async def serving(
    door: FakeDoor,
    *keys: Key,
    pace: Pace | None = None,
    sessions: Sessions | None = None,
    origins: tuple[str, ...] = (),
    port: int = 0,
    drain_seconds: float = 0.0,
    seconds: float | None = 20,
) -> AsyncIterator[str]:
    """Serve the door over HTTP; yields the base URL."""
    config = Config(keys=keys, server=Server(port=0, origins=origins))
    traced = Traced(Log("error"), Metrics())
    mcp = Mcp(door, traced, pace, sessions)
    gate = Gate(mcp, config, traced)
    refuse = lambda path, error: (error.status, words.encode_error(error))  # noqa: E731
    async with listening(gate, refuse=refuse, on_drain=mcp.close, port=port, drain_seconds=drain_seconds) as url:
        async with asyncio.timeout(seconds):  # a test that waits in vain should say so
            yield url
