"""An MCP server made with the official SDK, over HTTP in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field


class Sum(BaseModel):
    """A structured result."""

    total: int


def made() -> MCPServer:
    """A server with a few tools."""
    server = MCPServer("sdk")

    @server.tool(title="Add two")
    def add(a: int, b: int) -> Sum:
        """Adds numbers."""
        return Sum(total=a + b)

    @server.tool()
    async def walk(ctx: Context) -> str:
        """Goes step by step."""
        for step in range(1, 4):
            await ctx.report_progress(step, 3, f"step {step}")
        return "there"

    @server.tool()
    def routed(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Is routed by a header."""
        return region

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Adds a tool and says so."""
        server.add_tool(lambda: "new", name="grown", description="New.")
        await ctx.session.send_tool_list_changed()  # to a session
        await ctx.notify_tools_changed()  # to whoever subscribed
        return "grown"

    @server.tool()
    async def sleep(ctx: Context) -> str:
        """Never ends by itself."""
        await asyncio.Event().wait()
        return ""

    return server


@asynccontextmanager
async def on_http(server: MCPServer, **options: Any) -> AsyncIterator[str]:
    """Its address; it runs on an event loop of its own, so that the client's can be looked at."""
    config = uvicorn.Config(
        server.streamable_http_app(**options), port=0, log_config=None, timeout_graceful_shutdown=1, ws="none"
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:  # noqa: ASYNC110  # another thread's flag
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        await asyncio.to_thread(thread.join)
