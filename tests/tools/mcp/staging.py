"""Sources over the misbehaving server, and the proof that they leave nothing behind."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.offspring import offspring
from toolgate.storage.database import Database
from toolgate.storage.pins import PinStore
from toolgate.tools.sources.mcp import McpSource, Stdio
from toolgate.tools.sources.mcp.source import McpTool
from toolgate.tools.tool import Invocation, Tell, in_silence

PATIENCE = 10.0


def mock(mode: str, state: Path, **env: str) -> Stdio:
    """The misbehaving server in this mode."""
    program = str(Path(__file__).with_name("mock_server.py"))
    return Stdio((sys.executable, "-S", "-E", program, mode, str(state)), env)


def source_of(server: Any, **options: Any) -> McpSource:
    """A source that is quick to try again, with pins in memory unless others are given."""
    options = {"pins": PinStore(Database(None)), "first_retry": 0.01, "last_retry": 0.05, **options}
    return McpSource("box", server, **options)


@asynccontextmanager
async def opened(source: McpSource) -> AsyncIterator[McpSource]:
    """The source, once its first try to connect is over; afterwards no task, file or process of it is left."""
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
    assert offspring() == []


def descriptors() -> int:
    """How many files this process has open, sockets and pipes included, but for databases and what is nothing."""
    targets = [_target(name) for name in os.listdir("/proc/self/fd")]
    return sum(".db" not in target and target != "/dev/null" for target in targets)


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


def tool(source: McpSource, origin: str = "echo") -> McpTool:
    """The tool that its server calls so."""
    return next(tool for tool in source.tools if tool.spec.origin == origin)


def calling(arguments: dict[str, Any] | str = "{}", tell: Tell = in_silence) -> Invocation:
    """A call with these arguments."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Invocation("call_1", json.loads(text), text, tell=tell)


def noted(state: Path, name: str) -> list[str]:
    """The lines that the server wrote into one of its files."""
    path = state / name
    return path.read_text().splitlines() if path.exists() else []


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until something is so that nobody announces."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)
