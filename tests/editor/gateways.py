"""Gateways that windows join: one in a thread of the tests, and processes that can be killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.editor.chat_peer import ScriptedPeer
from tests.editor.window import wait_until
from tests.ports import free_port
from tests.stage import Stage
from toolgate.testing import FakeTool


class Gateway:
    """The gateway that the window joins, its scripted upstreams, and a tool that needs approval."""

    def __init__(self, stage: Stage, erase: FakeTool, peer: ScriptedPeer) -> None:
        self.stage = stage
        self.url = stage.url
        self.erase = erase
        self.peer = peer


def get(url: str) -> Any:
    """The JSON at a URL."""
    return httpx.get(url, timeout=30).raise_for_status().json()


def model_names(url: str) -> list[str]:
    """The names of the gateway's models."""
    return [model["id"] for model in get(f"{url}/v1/models")["data"]]


class GatewayProcess:
    """A gateway in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        program = (sys.executable, "-c", "from toolgate.cli import main; main()", "serve")
        address = ("--host", "127.0.0.1", "--port", str(self.port))
        with (self._folder / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*program, *address, *self._options], cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: answers(self.url))

    def kill(self) -> None:
        """End it and its workers without any notice."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def answers(url: str) -> bool:
    """Whether a gateway answers at a URL."""
    try:
        return httpx.get(f"{url}/healthz", timeout=30).status_code == 200
    except httpx.TransportError:
        return False
