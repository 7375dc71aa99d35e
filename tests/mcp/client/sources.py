"""Sources of a misbehaving server, and checks that they leave nothing behind."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.child_processes import living_children
from toolgate.mcp.client import McpSource, StdioServerConfig
from toolgate.mcp.client.source import McpTool
from toolgate.storage.accepted_definitions import AcceptedDefinitionStore
from toolgate.storage.database import Database
from toolgate.tools.tool import ReportProgress, ToolCallInput, ignore_progress

PATIENCE = 30.0


def mock(mode: str, state: Path, **env: str) -> StdioServerConfig:
    """Return the misbehaving server in this mode."""
    program = str(Path(__file__).with_name("mock_server.py"))
    return StdioServerConfig((sys.executable, "-S", "-E", program, mode, str(state)), env)


def source_of(server: Any, **options: Any) -> McpSource:
    """Make a source that retries quickly, with accepted definitions in memory unless a store is given."""
    options = {"accepted": AcceptedDefinitionStore(Database(None)), "first_retry": 0.01, "last_retry": 0.05, **options}
    return McpSource("box", server, **options)


@asynccontextmanager
async def opened(source: McpSource) -> AsyncIterator[McpSource]:
    """Open a source and wait for its first attempt to connect; afterwards no task, file or process may be left."""
    await asyncio.to_thread(int)  # the thread pool's own descriptors are not ours to count
    tasks, files = asyncio.all_tasks(), descriptors()
    await source.open(lambda: None)
    try:
        async with asyncio.timeout(PATIENCE):
            await source.settled()
        yield source
    finally:
        await source.aclose()
    await eventually(lambda: asyncio.all_tasks() <= tasks)
    await eventually(lambda: descriptors() <= files)  # servers in this process close their sides a little later
    assert living_children() == []


def descriptors() -> int:
    """Count the open files of this process, sockets and pipes included, without databases and /dev/null."""
    targets = [_target(name) for name in os.listdir("/proc/self/fd")]
    return sum(".db" not in target and target != "/dev/null" for target in targets)


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


def tool(source: McpSource, origin: str = "echo") -> McpTool:
    """Return the tool with this name on its server."""
    return next(tool for tool in source.tools if tool.spec.origin == origin)


def calling(arguments: dict[str, Any] | str = "{}", report_progress: ReportProgress = ignore_progress) -> ToolCallInput:
    """Make an invocation with these arguments."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCallInput("call_1", json.loads(text), text, report=report_progress)


def noted(state: Path, name: str) -> list[str]:
    """Return the lines that the server wrote into one of its files."""
    path = state / name
    return path.read_text().splitlines() if path.exists() else []


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that has no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)
