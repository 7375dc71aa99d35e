"""The Responses API with its state on a real socket, over a scripted model, in the loop of the test.

`stateful` may be opened again over the same database, as a server is that was stopped and started.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from openai import AsyncOpenAI

from tests.server.talk import Caller, Heard
from tests.stage import Player
from toolgate.config import Config, Key, Secret
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.runs.host import Terms as RunTerms
from toolgate.server.app import App
from toolgate.server.callers.auth import Keys
from toolgate.server.edge.listen import listening
from toolgate.server.endpoints import Conversations, Pace
from toolgate.server.origins import Origins
from toolgate.server.responses import Responses, State, Terms
from toolgate.server.responses.conversations import ConversationObjects
from toolgate.server.runs import make_runs
from toolgate.server.workshop.shop import Workshop
from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.traced import Traced
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource
from toolgate.upstreams.router import Route, Router

KEYS = tuple(Key(name=name, key=Secret(f"{name}-key"), scopes=("chat",)) for name in ("ann", "bob"))


class Stateful:
    """The server at `url`, its script and its state."""

    def __init__(self, url: str, player: Player, state: State, database: Database) -> None:
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

    async def request(self, method: str, path: str, body: Any = None, who: str = "ann") -> Heard:
        """One request on a connection of its own."""
        async with self.asking(method, path, body, who) as caller:
            return await caller.answer()

    @asynccontextmanager
    async def asking(self, method: str, path: str, body: Any = None, who: str = "ann") -> AsyncIterator[Caller]:
        """A request whose answer has not been read."""
        data = b"" if body is None else msgspec.json.encode(body)
        head = [f"{method} {path} HTTP/1.1", f"host: {self.url[7:]}", f"authorization: Bearer {who}-key"]
        head += ["content-type: application/json", f"content-length: {len(data)}"]
        async with Caller(self.url) as caller:
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
    terms: Terms | None = None,
    config: Config | None = None,
    runs_terms: RunTerms | None = None,
    played: Sequence[Entry] = (),
) -> AsyncIterator[Stateful]:
    """Serve until the block ends; then background responses are left for the next start, which may play a script at once."""
    config = config or Config(keys=KEYS)
    database, traced, player = Database(path), Traced(Log("error"), Metrics()), Player()
    player.scripted = ScriptedModel(played)
    store = ResponseStore(database)
    runs = make_runs(f"sqlite:///{path}" if path else "sqlite://", database, traced, runs_terms)
    state = State(database, store, traced, runs, terms)
    workshop = Workshop(config, database, traced, sources)
    router = Router([Route("m", player)])
    conversations = Conversations(router, Pace(), traced, workshop.tooling)
    keys = Keys(KEYS)
    endpoints = Responses(conversations, store, OPENAI_RESPONSES, state, keys.named).endpoints()
    endpoints += ConversationObjects(store, state).endpoints()
    app = App(endpoints, {"/": OPENAI_CHAT.server}, keys, Origins(Config(keys=KEYS)), traced)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        await receive()
        await workshop.open()
        state.background.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await state.aclose()
        await workshop.aclose()
        await database.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async with listening(served) as url:
        yield Stateful(url, player, state, database)
