"""A catalog of tools for tests, and an MCP server that serves it on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import jsonschema_rs

from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.auth.authenticator import Authenticator, Caller
from toolgate.config import Config, KeySettings, Secret
from toolgate.config.settings import Scope, ServerSettings
from toolgate.conversation.errors import NotFound
from toolgate.conversation.message import Text
from toolgate.http.application import Application, HttpRoute
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.mcp.server import http_errors
from toolgate.mcp.server.http import McpEndpoint
from toolgate.mcp.server.sessions import McpSessions
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry
from toolgate.tools.tool import OnChange, ReportProgress, ServerToolDefinition, ToolCallFailed, ToolOutput

Run = Callable[[Mapping[str, Any], ReportProgress], Awaitable[ToolOutput]]


def text_output(text: str) -> ToolOutput:
    return ToolOutput((Text(text),))


def tool(name: str, run: Run | ToolOutput | str = "done", **fields: Any) -> tuple[ServerToolDefinition, Run]:
    """Make a tool that runs a function, or always returns the same output."""
    output = text_output(run) if isinstance(run, str) else run

    async def always(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        assert isinstance(output, ToolOutput)
        return output

    spec = ServerToolDefinition(name=name, source="test", **{"description": f"The tool {name}.", **fields})
    return spec, run if callable(run) else always


class FakeToolCatalog:
    """Lists every tool to every caller, except those that `hidden` names by caller; `calls` records the calls."""

    def __init__(self, *tools: tuple[ServerToolDefinition, Run], hidden: Mapping[str, set[str]] | None = None) -> None:
        self.all = {spec.name: (spec, run) for spec, run in tools}
        self.calls: list[tuple[str, str, dict[str, Any], str, str]] = []
        self.listeners: set[OnChange] = set()
        self._hidden = hidden or {}

    async def settled(self) -> None:
        """Wait for nothing: all tools are there."""

    def tools(self, caller: Caller) -> Sequence[ServerToolDefinition]:
        hidden = self._hidden.get(caller.name, set())
        return [spec for spec, _ in self.all.values() if not spec.private and spec.name not in hidden]

    def find(self, caller: Caller, name: str) -> ServerToolDefinition | None:
        return next((spec for spec in self.tools(caller) if spec.name == name), None)

    async def call(
        self,
        caller: Caller,
        name: str,
        arguments: Mapping[str, Any],
        text: str,
        report_progress: ReportProgress,
        session: str,
    ) -> ToolOutput:
        spec = self.find(caller, name)
        if spec is None:
            raise NotFound(f"There is no tool {name}.")
        self.calls.append((caller.name, name, dict(arguments), text, session))
        for wrong in jsonschema_rs.validator_for(dict(spec.input_schema)).iter_errors(dict(arguments)):
            raise ToolCallFailed(f"The arguments do not fit: {wrong.message}")
        return await self.all[name][1](arguments, report_progress)

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        self.listeners.add(on_change)
        return lambda: self.listeners.discard(on_change)

    def add(self, spec: ServerToolDefinition, run: Run) -> None:
        """Add a tool and notify the listeners."""
        self.all[spec.name] = (spec, run)
        for listener in tuple(self.listeners):
            listener()


class BlockingTool:
    """A tool that waits until `release` is set; `begun` and `cancelled` are set by its calls."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return text_output("released")


def key(name: str, *scopes: Scope) -> KeySettings:
    """A key whose text is its name."""
    return KeySettings(name=name, key=Secret(f"key-of-{name}"), scopes=scopes or ("tools",))


class McpApp:
    """An ASGI application with only the MCP endpoint."""

    def __init__(self, mcp: McpEndpoint, config: Config, telemetry: Telemetry) -> None:
        endpoints = [
            HttpRoute("POST", "/mcp", mcp.post, http_errors, "tools"),
            HttpRoute("GET", "/mcp", mcp.get, http_errors, "tools"),
            HttpRoute("DELETE", "/mcp", mcp.delete, http_errors, "tools"),
        ]
        self._app = Application(
            endpoints, {"/": http_errors}, Authenticator(config.keys), OriginPolicy(config), telemetry
        )

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
    catalog: FakeToolCatalog,
    *keys: KeySettings,
    pace: StreamKeepaliveTimings | None = None,
    sessions: McpSessions | None = None,
    origins: tuple[str, ...] = (),
    port: int = 0,
    drain_seconds: float = 0.0,
    seconds: float | None = 20,
) -> AsyncIterator[str]:
    """Serve the catalog over HTTP and yield the base URL."""
    config = Config(keys=keys, server=ServerSettings(port=0, origins=origins))
    telemetry = Telemetry(Logger("error"), Metrics())
    mcp = McpEndpoint(catalog, telemetry, pace, sessions)
    gate = McpApp(mcp, config, telemetry)
    refuse = lambda path, error: (error.status, http_errors.encode_error(error))  # noqa: E731
    async with listening(gate, encode_error=refuse, on_drain=mcp.close, port=port, drain_seconds=drain_seconds) as url:
        async with asyncio.timeout(seconds):  # a test that would hang fails instead
            yield url
