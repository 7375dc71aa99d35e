"""A server in a process of its own that can be killed and started again, over a model that answers by what it has read.

Its tools write down every run of theirs before anything else, so that a test sees what happened in spite of all crashes.
"""

import asyncio
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from tests.stage import Player, served, upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.message import Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.storage.database import Database
from toolgate.testing import ScriptedModel

PROGRAM = [sys.executable, "-c", "from toolgate.cli import main; main()"]
WANTS = {"tool_execution": "auto", "use_server_tools": True}
TOOLS = """
import os, time
from pathlib import Path
from toolgate.lm import Annotations, ToolInvocationToken, tool

HERE = Path(__file__).parents[1]
HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)
REPEATABLE = Annotations(read_only=False, destructive=False, idempotent=True, open_world=False)


def note(line):
    with (HERE / "ran").open("a") as file:
        file.write(line + "\\n")
        file.flush()
        os.fsync(file.fileno())


def stay(name):
    while (HERE / f"hold-{name}").exists():
        time.sleep(0.01)


@tool(annotations=HARMLESS)
def look_up(place: str) -> str:
    "Looks something up."
    note("look_up")
    stay("look_up")
    return f"{place} is sunny"


@tool
def book(place: str) -> str:
    "Books a place."
    note("book")
    stay("book")
    return f"{place} is booked"


@tool(annotations=REPEATABLE)
def put(place: str, call: ToolInvocationToken) -> str:
    "Puts something in its place."
    note("put:" + call.key)
    stay("put")
    return f"{place} is put"


@tool(annotations=REPEATABLE)
def crash(place: str) -> str:
    "Brings its server down."
    note("crash")
    os.kill(os.getppid(), 9)
    time.sleep(60)
"""


def calling(*names: str) -> Callable[[ModelRequest], Sequence[Part | Exception] | str]:
    """A model that calls these tools, one after the other, each with a word of its own, and then says what it got."""

    def answer(request: ModelRequest) -> Sequence[Part | Exception] | str:
        parts = [part for message in request.messages for part in message.parts]
        results = [part for part in parts if isinstance(part, ToolResult)]
        if len(results) >= len(names):
            return "So: " + "; ".join(part.text for one in results for part in one.content if isinstance(part, Text))
        number = len(results)
        call = ToolCall(f"call_{names[number]}_{number:018}", names[number], '{"place": "Paris"}')
        return [Text(f"Step {number + 1}."), call]

    return answer


class Server:
    """A server that is killed and started again; `place` holds its configuration, its tools and what they wrote."""

    def __init__(self, place: Path, upstream: str, storage: str, player: Player, **settings: Any) -> None:
        self.place = place
        self.url = ""
        self.storage = storage
        self._player = player
        self._process: subprocess.Popen[bytes] | None = None
        (place / "tools").mkdir(exist_ok=True)
        (place / "tools" / "kept.py").write_text(TOOLS)
        config = {
            "server": {"port": 0},
            "upstreams": {"up": {"dialect": "openai_chat", "base_url": f"{upstream}/v1"}},
            "models": [{"name": "m", "upstream": "up", "model": "played", "retries": 0}],
            "tools": {
                "python": ["tools"],
                "limits": {"call_seconds": 60},
                "approvals": {"default": "allow", "rules": [{"tools": ["book"], "stance": "ask"}]},
            },
            "storage": storage,
            **settings,
        }
        self._config = place / "toolgate.yaml"
        self._config.write_text(json.dumps(config))

    def play(self, answer: Callable[[ModelRequest], Any], **options: Any) -> ScriptedModel:
        """Have the model answer every request in this way."""
        self._player.scripted = ScriptedModel(itertools.repeat(answer), **options)
        return self._player.scripted

    @property
    def ran(self) -> list[str]:
        """The tools that have begun to run, in their order."""
        file = self.place / "ran"
        return file.read_text().split() if file.exists() else []

    def hold(self, name: str) -> None:
        """Have a tool stay in the middle of its run."""
        (self.place / f"hold-{name}").touch()

    def let_go(self, name: str) -> None:
        """Let it end."""
        (self.place / f"hold-{name}").unlink()

    def start(self, port: int = 0) -> "Server":
        """Start it, and wait until it answers; port 0 is a free one."""
        command = [*PROGRAM, "serve", "--config", str(self._config), "--port", str(port)]
        with (self.place / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, cwd=self.place)
        self.url = until(self._announced)
        until(lambda: httpx.get(f"{self.url}/v1/tools/crash").status_code == 200)
        return self

    def _announced(self) -> str | None:
        log = (self.place / "log").read_text()
        assert self._process is not None
        assert self._process.poll() is None, log
        found = re.search(r"http://127[0-9.:]+", log)
        return found[0] if found else None

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event since the last start."""
        lines = (self.place / "log").read_text().splitlines()
        return [line for line in [json.loads(one) for one in lines if one.startswith("{")] if line["event"] == event]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it, at a moment at which it writes to no file: whoever is stopped while writing holds up all others."""
        self.signal(signal.SIGSTOP)
        while any(_is_written(file) for file in _files(self.storage)):
            self.signal(signal.SIGCONT)
            time.sleep(0.01)
            self.signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self) -> None:
        """Wait until it has ended."""
        if self._process is not None:
            self._process.wait(30)
            self._process = None

    def stop(self) -> None:
        """End it in good order."""
        self.signal(signal.SIGTERM)
        self.wait()

    def client(self) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=30)

    def cli(self, *words: str) -> str:
        """What a command prints."""
        environment = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(
            [*PROGRAM, *words, "--url", self.url], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout

    def pending(self) -> str:
        """The id of the approval that waits, once there is one."""

        def find() -> str | None:
            waiting = httpx.get(f"{self.url}/v1/approvals").json()["data"]
            return waiting[0]["id"] if waiting else None

        return str(until(find))

    def approval(self, id: str) -> Any:
        """What a person sees of an approval."""
        return httpx.get(f"{self.url}/v1/approvals/{id}").json()

    def run(self, id: str) -> Any:
        """A run with its timeline, as far as it is stored."""
        return httpx.get(f"{self.url}/v1/runs/{id}", timeout=30).json()

    def timeline(self, id: str) -> list[tuple[Any, ...]]:
        """What a person sees of a run: the number of each step, the tool of each call, and their outcomes."""
        return [(one["step"], one.get("tool"), one["outcome"]) for one in self.run(id)["timeline"]]

    def calls(self, id: str) -> list[dict[str, Any]]:
        """The attempts at calls in the timeline of a run."""
        return [one for one in self.run(id)["timeline"] if one["type"] == "call"]

    def answer(self, id: str, decision: str) -> None:
        """Answer an approval."""
        httpx.post(f"{self.url}/v1/approvals/{id}", json={"decision": decision}).raise_for_status()

    def consume(self, id: str, run: str) -> None:
        """Do what a process has done that approved a call, let it use the approval up, and died."""

        async def write() -> None:
            database = Database(self.storage)
            update = (
                "UPDATE approvals SET state = 'consumed', answered_by = 'ann', level = 'once' WHERE id = ? AND run = ?"
            )
            assert await database.change(lambda db: db.execute(update, (id, run)).rowcount) == 1
            await database.aclose()

        asyncio.run(write())

    def ended(self, id: str) -> Any:
        """The response, once it has ended."""
        with self.client() as client:

            def over() -> Any:
                response = client.responses.retrieve(id)
                return response if response.status not in ("queued", "in_progress") else None

            return until(over)


@contextmanager
def server(place: Path, storage: str, **settings: Any) -> Iterator[Server]:
    """A server that is not started yet, over a model in this process."""
    player = Player()
    with ExitStack() as stack:
        upstream = stack.enter_context(served(Toolgate(upstream_config(), {"played": player})))
        made = Server(place, upstream, storage, player, **settings)
        stack.callback(made.kill)
        yield made


def _files(storage: str) -> list[Path]:
    """The files of a storage, if it has any."""
    file = Path(storage.removeprefix("sqlite:///"))
    steps = file.with_name(f"{file.stem}-runs{file.suffix}")
    return [one for one in (file, steps) if storage.startswith("sqlite:") and one.exists()]


def _is_written(file: Path) -> bool:
    """Whether somebody is in the middle of writing, and stays there."""
    with closing(sqlite3.connect(file, timeout=0.5, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        db.execute("ROLLBACK")
        return False


def until(find: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What is found, once there is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := find():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to that")
