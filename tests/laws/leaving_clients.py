"""Clients that call tools of child processes over HTTP and close the connection 0 to 30 ms later.

`python -m tests.laws.leaving_clients --calls 20000` starts a server by its command line (uvloop, as in production), has
four clients call a Python tool, a command and a tool of an MCP server in turn, and counts what must not happen.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from tests.workers.server_process import RunningServer, running_server

MOCK = Path(__file__).parents[1] / "mcp" / "client" / "mock_server.py"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
TOOL = '''
from toolgate.lm import tool

@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("add", {"a": 1, "b": 2}),
    ("run_command", {"command": ["true"]}),
    ("mock_echo", {"a": 1}),
)


class Counted(Struct):
    """What the clients saw, and what was left of the server."""

    calls: int = 0
    answered: int = 0
    failed: int = 0
    status: int | None = None
    bad_descriptors: int = 0
    tracebacks: int = 0
    descriptors: tuple[int, int] = (0, 0)
    children: tuple[int, int] = (0, 0)


def configuration(folder: Path) -> str:
    """A server without keys whose tools run unasked."""
    (folder / "tools").mkdir()
    (folder / "tools" / "adding.py").write_text(TOOL)
    return json.dumps(
        {
            "storage": "sqlite://",
            "tools": {
                "python": ["tools"],
                "workers": {"count": 3, "idle_seconds": 0.01},
                "builtin": {"commands": True, "roots": ["."]},
                "mcp": {"mock": {"command": [sys.executable, str(MOCK), "plain", str(folder)]}},
                "approvals": {"default": "allow", "open_world": "allow", "auto_approve_commands": [["true"]]},
            },
        }
    )


def request(host: str, tool: str, arguments: dict[str, Any]) -> bytes:
    """A stateless `tools/call`."""
    params = {"name": tool, "arguments": arguments, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    lines = ["POST /mcp HTTP/1.1", f"host: {host}", "accept: application/json, text/event-stream"]
    lines += ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", f"mcp-name: {tool}"]
    lines += ["connection: close", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def leave(running: RunningServer, number: int, chance: random.Random, counted: Counted) -> None:
    """Call the next tool and close the connection a moment later; every tenth client stays for its answer."""
    tool, arguments = CALLS[number % len(CALLS)]
    host, port = running.address
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request(f"{host}:{port}", tool, arguments))
        if chance.random() < 0.1:
            async with asyncio.timeout(60):
                answer = await reader.read()
            counted.answered += 1
            if b'"isError":false' not in answer:
                counted.failed += 1
                sys.stderr.write(f"{tool}: {answer[-600:]!r}\n")
        else:
            await asyncio.sleep(chance.uniform(0, 0.03))
    finally:
        writer.transport.abort()
    counted.calls += 1


async def drive(running: RunningServer, calls: int, seed: int, counted: Counted) -> None:
    """Four clients at a time, until so many calls were made or the server is gone."""
    numbers = iter(range(calls))

    async def client(own: int) -> None:
        chance = random.Random(seed * 4 + own)
        for number in numbers:
            if running.process.poll() is not None:
                return
            try:
                await leave(running, number, chance, counted)
            except OSError:
                counted.failed += 1

    await asyncio.gather(*[client(own) for own in range(4)])


def used(process: psutil.Process) -> tuple[int, int]:
    """Open descriptors and living descendants."""
    return process.num_fds(), len(process.children(recursive=True))


async def at_rest(process: psutil.Process) -> tuple[int, int]:
    """The same when idle workers have ended: what is used for a second without change."""
    found, since = used(process), 0
    for _ in range(600):  # half a minute at the most
        await asyncio.sleep(0.05)
        found, before = used(process), found
        since = since + 1 if found == before else 0
        if since == 20:
            break
    return found


def stress(folder: Path, calls: int, seed: int = 0) -> Counted:
    """Run it all."""
    counted = Counted()
    with running_server(folder, configuration(folder)) as running:
        running.announced()
        process = psutil.Process(running.process.pid)
        asyncio.run(drive(running, len(CALLS) * 4, seed, Counted()))
        before = asyncio.run(at_rest(process))
        asyncio.run(drive(running, calls, seed, counted))
        if running.process.poll() is None:
            after = asyncio.run(at_rest(process))
            counted.descriptors, counted.children = (before[0], after[0]), (before[1], after[1])
        running.process.terminate()
        counted.status = running.ended(60)
    output = "".join(running.log_lines)
    counted.bad_descriptors = output.count("Bad file descriptor")
    counted.tracebacks = output.count("Traceback") + output.count("Fatal error")
    if counted.tracebacks or counted.status:
        sys.stderr.write(output[-4000:])
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        found = stress(Path(place), options.calls, options.seed)
    sys.stdout.write(f"{found}\n")
