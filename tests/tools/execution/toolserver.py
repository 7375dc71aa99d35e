"""The tools' endpoints on a real socket, over a registry with one source of the configuration and run-time registrations."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.api.http_client import HttpConnection, HttpResponse
from tests.stage import in_a_thread
from tests.tools.fakes import FakeSource, FakeTool, tool
from toolgate.api.tools import ToolEndpoints
from toolgate.auth.authenticator import Authenticator
from toolgate.config import Config, KeySettings, Secret
from toolgate.conversation.errors import Conflict, InvalidRequest, NotFound
from toolgate.dialects.openai_chat import DIALECT
from toolgate.http.application import Application
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.storage.database import Database
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.sources.registered import RegisteredToolSource, ToolRegistration
from toolgate.tools.tool import OnChange, ServerToolDefinition, ToolSource

KEYS = (
    KeySettings(name="root", key=Secret("root-key"), scopes=("tools", "admin")),
    KeySettings(name="ann", key=Secret("ann-key"), scopes=("tools",)),
    KeySettings(name="few", key=Secret("few-key"), scopes=("tools",), tools=("get_*",), blocked_tools=("*_page",)),
    KeySettings(name="talker", key=Secret("talker-key"), scopes=("chat",)),
)


class Changed(Struct, frozen=True):
    """A tool that waits to be accepted."""

    name: str
    digest: str
    old: Any
    new: Any


class WaryMcp(FakeSource):
    """An MCP server that was registered: its tools are there at once, one of them changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"mcp/{name}", [tool(f"{name}_ask", f"mcp/{name}")])
        self.quarantined: tuple[Changed, ...] = (
            Changed(f"{name}_odd", "d1", {"description": "a"}, {"description": "b"}),
        )

    async def accept(self, name: str, seen: str | None = None) -> None:
        if not any(one.name == name for one in self.quarantined):
            raise NotFound("Not here.")
        if seen not in (None, "d1"):
            raise Conflict("It has changed again.")
        self.quarantined = ()
        self.bring(*self.tools, tool(name, self.name))


class Unwilling(FakeSource):
    """Cannot be opened, nor closed."""

    async def open(self, on_change: OnChange) -> None:
        raise OSError("no such device")

    async def aclose(self) -> None:
        raise OSError("no such device")


def make(registration: ToolRegistration) -> ToolSource:
    """What the composition root would build."""
    if "unreachable" in registration.url:
        raise InvalidRequest("url: this host may not be reached.", param="url")
    if registration.type == "mcp":
        return WaryMcp(registration.name)
    if "unwilling" in registration.url:
        return Unwilling("api")
    names = set(ServerToolDefinition.__struct_fields__) & set(ToolRegistration.__struct_fields__)
    output = {name: getattr(registration, name) for name in names}
    return FakeSource("api", [FakeTool(ServerToolDefinition(source="api", **output))])


class ToolServer(Struct, frozen=True):
    """A server at `url`, and what is behind it."""

    url: str
    registry: ToolRegistry
    configured: FakeSource

    async def request(self, method: str, path: str, body: Any = None, who: str = "root") -> HttpResponse:
        """One request on a connection of its own."""
        host = self.url.removeprefix("http://")
        data = b"" if body is None else msgspec.json.encode(body)
        head = [f"{method} {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {who}-key"]
        head += ["content-type: application/json", f"content-length: {len(data)}"]
        async with HttpConnection(self.url) as caller:
            caller.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
            return await caller.response()


TOOLS = (
    tool("get_time", tags=("time",), display_name="Clock", reference_name="clock", when="online"),
    tool("get_page", tags=("web",)),
    tool("put_page", tags=("web", "slow")),
    tool("secret", private=True),
)


@asynccontextmanager
async def tool_server(*tools: FakeTool, path: Path | None = None) -> AsyncIterator[ToolServer]:
    """Serve the endpoints, and nothing else."""
    database = Database(path)
    registered, configured = (
        RegisteredToolSource(RegisteredSourceStore(database), make),
        FakeSource("python", tools or TOOLS),
    )
    registry = ToolRegistry([configured, FakeSource("mcp/wiki"), registered], quiet_seconds=0)
    await registry.open()
    keys, origins = Authenticator(KEYS), OriginPolicy(Config(keys=KEYS))
    app = Application(
        ToolEndpoints(registry, registered).endpoints(),
        {"/": DIALECT.server},
        keys,
        origins,
        Telemetry(Logger("error"), Metrics()),
    )

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    try:
        async with listening(served) as url:
            yield ToolServer(url, registry, configured)
    finally:
        await registry.aclose()
        await database.aclose()


@asynccontextmanager
async def _with_a_server_of_its_own() -> AsyncIterator[str]:
    async with tool_server() as server:
        await server.request("POST", "/v1/tools", {"type": "mcp", "name": "docs", "url": "http://127.0.0.1:1/"})
        yield server.url


def tool_server_in_a_thread() -> AbstractContextManager[str]:
    """The URL of a server in a thread of its own, for clients that block; an MCP server is registered there."""
    return in_a_thread(_with_a_server_of_its_own())
