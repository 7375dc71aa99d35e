"""Two server processes over one storage, a model in this process that both ask, and tools that write down every run."""

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.api.http_client import HttpConnection, HttpResponse
from tests.stage import Player, served, upstream_config
from tests.workers.server_process import RunningServer, running_server
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.message import Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.testing import ScriptedModel

CHAT = "/v1/chat/completions"
RUN = {"tool_execution": "auto", "use_server_tools": True}
KEYS = [
    {"name": "ann", "key": "ann-key", "scopes": ["chat", "tools"]},
    {"name": "bob", "key": "bob-key", "scopes": ["chat", "tools"]},
    {"name": "root", "key": "root-key", "scopes": ["chat", "tools", "admin"]},
    *[{"name": f"quick-{number}", "key": f"quick-{number}-key", "requests_per_minute": 60} for number in range(5)],
    {"name": "frugal", "key": "frugal-key", "budget": {"amount": 1.0, "period": "total"}},
    {"name": "patient", "key": "patient-key", "budget": {"amount": 1.0, "period": "total"}},
]
TOOLS = """
import os, time
from pathlib import Path
from toolgate.lm import Annotations, tool

RAN = Path({ran!r})
HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)


def note(line):
    with RAN.open("a") as file:
        file.write(line + "\\n")
        file.flush()
        os.fsync(file.fileno())


@tool(annotations=HARMLESS)
def look_up(place: str) -> str:
    "Looks something up."
    return f"{{place}} is sunny"


@tool
def book(place: str) -> str:
    "Books a place, for which a person is asked."
    note(place)
    return f"{{place}} is booked"


@tool
def mark(place: str) -> str:
    "Marks a place for good."
    note(place)
    while RAN.with_name("hold").exists():
        time.sleep(0.01)
    return f"{{place}} is marked"
"""


class Pair:
    """Servers that know of each other only what they share."""

    def __init__(self, services: Sequence[RunningServer], storage: str, ran: Path, player: Player) -> None:
        self.services = services
        self.storage = storage
        self._ran = ran
        self._player = player

    @property
    def urls(self) -> list[str]:
        """Where they are."""
        return [one.url for one in self.services]

    @property
    def ran(self) -> list[str]:
        """The places for which a tool began to run, in order."""
        return self._ran.read_text().split() if self._ran.exists() else []

    @property
    def hold(self) -> Path:
        """While this file is there, `mark` does not end."""
        return self._ran.with_name("hold")

    def play(self, answer: Callable[[ModelRequest], Any], **options: Any) -> ScriptedModel:
        """Have the model answer every request in this way."""
        self._player.scripted = ScriptedModel(itertools.repeat(answer), **options)
        return self._player.scripted

    @asynccontextmanager
    async def asking(
        self, node: int, method: str, path: str, body: Any = None, key: str = "ann-key", *headers: str
    ) -> AsyncIterator[HttpConnection]:
        """A request to one of them whose answer has not been read."""
        async with HttpConnection(self.services[node].url) as caller:
            caller.writer.write(_written(method, path, body, key, *headers))
            yield caller

    async def request(
        self, node: int, method: str, path: str, body: Any = None, key: str = "ann-key", *headers: str
    ) -> HttpResponse:
        """A request to one of them on a connection of its own."""
        async with self.asking(node, method, path, body, key, *headers) as caller:
            return await caller.response()


class Crowd:
    """Clients that are connected to both, in turn, and let go of their requests at the same moment."""

    def __init__(self, callers: Sequence[HttpConnection]) -> None:
        self._callers = callers

    async def volley(self, path: str, bodies: Sequence[Any], key: str, *headers: str) -> list[HttpResponse]:
        """What each of them hears: the first body is the first client's, and so on."""
        callers = self._callers[: len(bodies)]
        for caller, body in zip(callers, bodies, strict=True):
            caller.writer.write(_written("POST", path, body, key, *headers))
        return await asyncio.gather(*[caller.response() for caller in callers])


@asynccontextmanager
async def crowd(urls: Sequence[str], size: int) -> AsyncIterator[Crowd]:
    """So many clients."""
    callers = [HttpConnection(urls[number % len(urls)]) for number in range(size)]
    await asyncio.gather(*[caller.__aenter__() for caller in callers])
    try:
        yield Crowd(callers)
    finally:
        for caller in callers:
            caller.abort()
        await asyncio.sleep(0)


def _written(method: str, path: str, body: Any, key: str, *headers: str) -> bytes:
    data = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}", *headers]
    lines += ["content-type: application/json", f"content-length: {len(data)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def output(text: str, **more: Any) -> dict[str, Any]:
    """A request of the chat dialect."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def obeying(request: ModelRequest) -> Sequence[Part] | str:
    """A model that does what the user's last words say: `book Rome` is a call of that tool, anything else is repeated."""
    parts = request.messages[-1].parts
    results = [part for part in parts if isinstance(part, ToolResult)]
    if results:
        return "So: " + "; ".join(part.text for one in results for part in one.content if isinstance(part, Text))
    text = "".join(part.text for part in parts if isinstance(part, Text))
    match re.fullmatch(r"(book|look_up|mark) (\S+)", text):
        case None:
            return f"You said {text}."
        case order:
            call = f"call_{random.getrandbits(64):016x}"
            return [ToolCall(call, order[1], json.dumps({"place": order[2]}))]


@contextmanager
def running_pair(folder: Path, storage: str, redis: str | None, *arguments: str, **settings: Any) -> Iterator[Pair]:
    """Both of them, until the end."""
    player, ran = Player(), folder / "ran"
    with ExitStack() as stack:
        upstream = stack.enter_context(served(Toolgate(upstream_config(), {"played": player})))
        config = _config(upstream, folder, storage, redis) | settings
        (folder / "tools").mkdir()
        (folder / "tools" / "kept.py").write_text(TOOLS.format(ran=str(ran)))
        services = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            services.append(stack.enter_context(running_server(folder / name, json.dumps(config), *arguments)))
        yield Pair([one.announced() for one in services], storage, ran, player)


def _config(upstream: str, folder: Path, storage: str, redis: str | None) -> dict[str, Any]:
    tools = {
        "python": [str(folder / "tools")],
        "approvals": {"default": "allow", "self_approval": True, "rules": [{"tools": ["book"], "stance": "ask"}]},
    }
    model = {"name": "m", "upstream": "up", "model": "played", "retries": 0, "price": {"input": 0, "output": 1}}
    return {
        "keys": KEYS,
        "upstreams": {"up": {"dialect": "openai_chat", "base_url": f"{upstream}/v1"}},
        "models": [model],
        "tools": tools,
        "storage": storage,
        "log": {"level": "warning"},
        "runs": {"lease_seconds": 6, "look_seconds": 0.2},
        **({"redis": redis} if redis else {}),
    }
