"""The Responses API with its state on a real socket, over a scripted model, in the loop of the test.

`stateful` may be opened again over the same database, as a server is that was stopped and started.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.api.http_client import HttpConnection, HttpResponse
from tests.stage import Player
from toolgate.api.chat import ChatHandler
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.api.responses import (
    BackgroundResponseOptions,
    BackgroundServices,
    ConversationsAndBackground,
    ResponseEndpoints,
)
from toolgate.api.responses.conversations import ConversationEndpoints
from toolgate.app.runs import make_executor
from toolgate.app.tools import ToolService
from toolgate.auth.authenticator import Authenticator
from toolgate.config import Config, KeySettings, Secret
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.http.application import Application
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.runs.node_liveness import is_gone, this_node
from toolgate.runs.scheduler import SchedulerOptions as RunTerms
from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource
from toolgate.upstreams.router import ModelRoute, Router
from toolgate.wire.jsontext import encode

KEYS = tuple(KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("chat",)) for name in ("ann", "bob"))


class Stateful:
    """The server at `url`, its script and its state."""

    def __init__(self, url: str, player: Player, state: ConversationsAndBackground, database: Database) -> None:
        self.url = url
        self.state = state
        self.database = database
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    def client(self, who: str = "ann") -> AsyncOpenAI:
        """The official client."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=f"{who}-key", max_retries=0)

    async def status(self, id: str) -> str:
        """How it stands with a response."""
        return str((await self.request("GET", f"/v1/responses/{id}")).json["status"])

    async def ended(self, id: str) -> dict[str, Any]:
        """The response, once it has ended."""

        async def over() -> bool:
            return await self.status(id) not in ("queued", "in_progress")

        await until(over)
        kept: dict[str, Any] = (await self.request("GET", f"/v1/responses/{id}")).json
        return kept

    async def on_disk(self, id: str, count: int) -> None:
        """Wait until so many events of a response are kept."""

        async def there() -> bool:
            return len(await self.state.background.streams.after(id, -1)) >= count

        await until(there)

    async def request(self, method: str, path: str, body: Any = None, who: str = "ann") -> HttpResponse:
        """One request on a connection of its own."""
        async with self.asking(method, path, body, who) as caller:
            return await caller.response()

    @asynccontextmanager
    async def asking(self, method: str, path: str, body: Any = None, who: str = "ann") -> AsyncIterator[HttpConnection]:
        """A request whose answer has not been read."""
        data = b"" if body is None else encode(body)
        head = [f"{method} {path} HTTP/1.1", f"host: {self.url[7:]}", f"authorization: Bearer {who}-key"]
        head += ["content-type: application/json", f"content-length: {len(data)}"]
        async with HttpConnection(self.url) as caller:
            caller.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
            yield caller


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again, but not for ever."""
    for _ in range(1000):
        if await check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


@asynccontextmanager
async def stateful(
    path: Path | None = None,
    *sources: ToolSource,
    terms: BackgroundResponseOptions | None = None,
    config: Config | None = None,
    runs_terms: RunTerms | None = None,
    played: Sequence[Entry] = (),
) -> AsyncIterator[Stateful]:
    """Serve until the block ends; then background responses are left for the next start, which may play a script at once."""
    config = config or Config(keys=KEYS)
    database, telemetry, player = Database(path), Telemetry(Logger("error"), Metrics()), Player()
    player.scripted = ScriptedModel(played)
    store = ResponseStore(database)
    runs = RunStore(database, this_node(), is_gone=is_gone)
    executor = make_executor(f"sqlite:///{path}" if path else "sqlite://", database, runs.node, telemetry)
    keys = Authenticator(KEYS)
    tool_service = ToolService(config, database, telemetry, sources)
    router = Router([ModelRoute("m", player)])
    conversations = ChatHandler(router, StreamKeepaliveTimings(), telemetry, tool_service.tool_runs)
    services = BackgroundServices(conversations, keys.named)
    state = ConversationsAndBackground(
        database,
        store,
        telemetry,
        runs,
        executor,
        lambda: services,
        terms or BackgroundResponseOptions(),
        runs_terms or RunTerms(),
    )
    endpoints = ResponseEndpoints(conversations, store, OPENAI_RESPONSES, state).endpoints()
    endpoints += ConversationEndpoints(store, state).endpoints()
    app = Application(endpoints, {"/": OPENAI_CHAT.server}, keys, OriginPolicy(Config(keys=KEYS)), telemetry)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        await receive()
        await tool_service.open()
        state.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await state.aclose()
        await tool_service.aclose()
        await database.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async with listening(served) as url:
        yield Stateful(url, player, state, database)
