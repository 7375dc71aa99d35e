"""A server that is killed in the middle of a harmful call, and started again: the call is not repeated.

The server is a process of its own; the tool writes down every run before it does anything else.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.api.http_client import PATHS, HttpConnection, ask, body
from tests.stage import Player, upstream_config
from tests.tools.execution.toolwork import AUTO, call, output, results, soon
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.engine.tool_loop import INTERRUPTED_CALL
from toolgate.http.listener import listening
from toolgate.testing import ScriptedModel


async def test_after_a_restart_the_same_request_does_not_run_an_unsafe_tool_again(tmp_path: Path) -> None:
    """spec: D3; fault: K-B: the server is killed in the middle of the call."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "writer.py").write_text(WRITER)
    runs = tmp_path / "runs"
    async with listening(Toolgate(upstream_config(), {"played": (player := Player())})) as upstream:
        config = killable(tmp_path, upstream)
        player.scripted = script = ScriptedModel([[call(arguments="{}")], "Checking."])
        async with served(config) as (url, process), HttpConnection(url) as caller:
            await caller.post(PATHS["openai_chat"], body("openai_chat", "m", False, "Go.", **AUTO))
            await soon(runs.exists)
            process.kill()
        async with served(config) as (url, _):
            received = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", False, "Go.", **AUTO))
            assert output("openai_chat", received) == "Checking."
        assert results(script.requests[1]) == [INTERRUPTED_CALL]
        assert runs.read_text() == "ran\n"


WRITER = """
import os, time
from pathlib import Path
from toolgate.lm import tool

@tool()
def write() -> str:
    "Writes."
    with (Path(__file__).parents[1] / "runs").open("a") as file:
        file.write("ran\\n")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(60)
    return "written"
"""


def killable(place: Path, upstream: str) -> Path:
    """A configuration for a process of its own."""
    config = {
        "server": {"port": 0},
        "upstreams": {"up": {"dialect": "openai_chat", "base_url": f"{upstream}/v1"}},
        "models": [{"name": "m", "upstream": "up", "model": "played"}],
        "tools": {
            "python": ["tools"],
            "limits": {"call_seconds": 60},
            "approvals": {"default": "allow"},
        },
        "storage": f"sqlite:///{place}/toolgate.db",
    }
    path = place / "toolgate.yaml"
    path.write_text(json.dumps(config))
    return path


async def _has(url: str, name: str) -> bool:
    async with HttpConnection(url) as caller:
        caller.writer.write(f"GET /v1/tools/{name} HTTP/1.1\r\nhost: {url[7:]}\r\n\r\n".encode())
        return (await caller.response()).status == 200


@asynccontextmanager
async def served(config: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server in a process of its own, once its tools are there."""
    program = [sys.executable, "-c", "from toolgate.cli import main; main()"]
    command = [*program, "serve", "--config", str(config), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, cwd=config.parent)
    assert process.stderr is not None
    try:
        line = b""
        while b"http://" not in line:
            line = await asyncio.wait_for(process.stderr.readline(), 30)
            assert line, "the server did not start"
        url = re.search(r"http://[0-9.:]+", line.decode())
        assert url is not None
        await soon(lambda: _has(url[0], "write"))
        yield url[0], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
