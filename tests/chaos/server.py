"""The server under test as a process of its own, which is killed and started again at the same address."""

import asyncio
import json
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.model import PRICE
from tests.chaos.oracle import NAMES
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
KEY = "chaos-key-0123456789"
START_SECONDS = 30.0


def configuration(storage: str, upstream: str, **changes: Any) -> dict[str, Any]:
    """What is written into the server's file."""
    scopes = ["chat", "tools", "admin"]
    return {
        "server": {"port": 0},
        "keys": [{"name": "chaos", "key": KEY, "scopes": scopes, "budget": {"amount": 1e9, "period": "total"}}],
        "upstreams": {"up": {"dialect": "openai_chat", "base_url": f"{upstream}/v1"}},
        "models": [{"name": "m", "upstream": "up", "model": "played", "price": {"input": PRICE, "output": PRICE}}],
        "tools": {
            "python": ["tools"],
            "approvals": {
                "default": "allow",
                "self_approval": True,
                "hold_seconds": 30,
                "rules": [{"stance": "ask", "tools": ["asked"]}],
            },
        },
        "storage": storage,
        "log": {"level": "warning"},
        **changes,
    }


class Server:
    """A server in this place, killed and started as often as anybody likes."""

    def __init__(self, place: Path, storage: str, upstream: str, **changes: Any) -> None:
        self.place = place
        self.storage = storage
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_lines: deque[str] = deque(maxlen=50)
        self.process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._file = place / "toolgate.yaml"
        self._file.write_text(json.dumps(configuration(storage, upstream, **changes)))

    async def start(self, **environment: str) -> float:
        """Start it; returns, once its tools are there, how many seconds that took."""
        began = time.monotonic()
        await self.launch(**environment)
        await self.ready()
        return time.monotonic() - began

    async def launch(self, **environment: str) -> None:
        """Start the process and wait for nothing."""
        command = [sys.executable, "-m", "tests.chaos.launch", "serve", "--config", str(self._file)]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self.process = await asyncio.create_subprocess_exec(
            *command,
            "--port",
            str(self.port),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": paths, "ENABLE_EMBEDDED_MODEL": "false", **environment},
        )
        self._listening = asyncio.create_task(self._listen(self.process))

    async def ready(self) -> None:
        """Wait until it answers and has its tools; RuntimeError if it has died instead."""
        assert self.process is not None
        until = time.monotonic() + START_SECONDS
        async with httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}) as client:
            while time.monotonic() < until:
                if self.process.returncode is not None:
                    raise RuntimeError(f"the server died while it started: {self.last_words}")
                try:
                    listed = (await client.get("/v1/tools")).json()
                    if {one["name"] for one in listed["data"]} >= NAMES:
                        return
                except (httpx.TransportError, KeyError, ValueError):
                    pass
                await asyncio.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.last_words}")

    def arm(self, order: str) -> None:
        """Have it die at a point, by `name:n`."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n".encode())

    async def died(self) -> None:
        """Wait until it is dead."""
        assert self.process is not None
        await self.process.wait()

    async def kill(self) -> None:
        """kill -9."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._listening is not None:
            await self._listening

    async def stop(self) -> None:
        """End it as an operator would."""
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 40)
            except TimeoutError:
                await self.kill()
        if self._listening is not None:
            await self._listening

    @property
    def last_words(self) -> str:
        """What it wrote to its log, for whoever looks for the reason."""
        return "\n".join(self.log_lines)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self.log_lines.append(re.sub(r"\s+", " ", line.decode("utf-8", "replace"))[:2000])
