"""The server of a soak: a real `toolgate serve` process, and what the system says of it."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from msgspec import Struct

ROOT = Path(__file__).parents[2]
KEY = "soak-key-0123456789"
START_SECONDS = 60.0
TOOLS = '''
import time

from toolgate.lm import Annotations, tool

HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)


@tool(annotations=HARMLESS)
def look(at: str) -> str:
    """Look at something for a moment."""
    time.sleep(0.01)
    return f"saw {at}"


@tool(annotations=Annotations())
def change(what: str) -> str:
    """Change something, after a person has consented."""
    return f"changed {what}"
'''


class Sample(Struct, frozen=True):
    """What the system said of the server and its children at one moment."""

    seconds: float
    rss: int
    """Bytes of the server's own processes, without tools."""
    descriptors: int
    children: int
    lag: float
    """Seconds that a request which needs nothing took."""


def configuration(storage: str, upstream: str, workers: int, idle: float, place: Path) -> dict[str, Any]:
    """What is written into the server's file."""
    dialects = ("openai_chat", "openai_responses", "anthropic", "ollama")
    bases = dict.fromkeys(dialects, f"{upstream}/v1") | {"ollama": upstream}
    command = [sys.executable, str(ROOT / "tests" / "laws" / "mcp_server.py")]
    return {
        "server": {"port": 0, "workers": workers},
        "keys": [{"name": "soak", "key": KEY, "scopes": ["chat", "tools", "admin"]}],
        "upstreams": {name: {"dialect": name, "base_url": base} for name, base in bases.items()},
        "models": [{"name": name, "upstream": name, "model": "played"} for name in dialects],
        "tools": {
            "python": ["tools"],
            "builtin": {"roots": [str(place / "files")], "commands": True},
            "mcp": {"pipe": {"command": command, "trust": "always"}},
            "workers": {"idle_seconds": idle},
            "approvals": {
                "default": "allow",
                "open_world": "allow",
                "self_approval": True,
                "hold_seconds": 3,
                "auto_approve_commands": [["echo"], ["sleep"]],
                "rules": [{"stance": "ask", "tools": ["change"]}],
            },
        },
        "responses": {"background_per_caller": 64, "stream_keep_seconds": 20},
        "storage": storage,
        "log": {"level": "warning"},
    }


class Server:
    """The process."""

    def __init__(self, place: Path, storage: str, upstream: str, workers: int, idle: float) -> None:
        for folder in ("tools", "files"):
            (place / folder).mkdir()
        (place / "tools" / "soaked.py").write_text(TOOLS)
        self._file = place / "toolgate.yaml"
        self._file.write_text(json.dumps(configuration(storage, upstream, workers, idle, place)))
        self._log = (place / "log").open("ab")
        self._place = place
        self._workers = workers
        self.url = ""

    async def start(self) -> None:
        """Start it, and wait until it has its tools."""
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = psutil.Popen(
            [sys.executable, "-c", "from toolgate.cli import main; main()", "serve", "--config", str(self._file)],
            stdout=self._log,
            stderr=self._log,
            cwd=self._place,
            env={**os.environ, "PYTHONPATH": paths, "ENABLE_EMBEDDED_MODEL": "false"},
        )
        self._began = time.monotonic()
        async with asyncio.timeout(START_SECONDS):
            while not await self._is_ready():
                assert self._process.poll() is None, self.log
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        marks = [line for line in self.log.splitlines() if " on http://" in line]
        if not marks:
            return False
        self.url = marks[0].split(" on ")[1].strip()
        async with httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}) as client:
            try:
                listed = (await client.get("/v1/tools")).json()
            except (httpx.TransportError, ValueError):
                return False
        return {"look", "change", "run_command", "pipe_send"} <= {one["name"] for one in listed.get("data", ())}

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return (self._place / "log").read_text("utf-8", "replace")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    async def sample(self) -> Sample:
        """Look at it now."""
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=self.url) as client:
            await client.get("/healthz", timeout=60)
        lag = time.monotonic() - began
        children = self._process.children(recursive=True)
        own = [self._process, *[child for child in children if self._workers > 1 and _is_worker(child)]]
        rss = descriptors = 0
        for process in own:
            rss += process.memory_info().rss
            descriptors += process.num_fds()
        return Sample(time.monotonic() - self._began, rss, descriptors, len(children) + 1 - len(own), lag)

    async def stop(self) -> int:
        """End it as an operator would, and return its exit code."""
        if self.alive:
            self._process.terminate()
        code = await asyncio.to_thread(self._process.wait, 60)
        self._log.close()
        return int(code)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("toolgate" in word and "tools" not in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
