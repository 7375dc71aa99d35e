"""A server on a real socket whose keys have limits and whose requests may be keyed, over a model that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.server.talk import Caller, Heard
from toolgate.config import Config, Key, Secret
from toolgate.config.settings import KeyBudget
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine.limits import Price
from toolgate.limits import Hold, KeyLimits, LocalCounters, Purse
from toolgate.server.app import App, Endpoint
from toolgate.server.callers.access import Access
from toolgate.server.callers.idempotency import Idempotency, Terms
from toolgate.server.callers.keys import KeyTable
from toolgate.server.callers.limits import Limits
from toolgate.server.edge.listen import listening
from toolgate.server.endpoints import Conversations, Pace
from toolgate.server.origins import Origins
from toolgate.storage.database import Database
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.traced import Traced
from toolgate.testing import Entry, ScriptedModel
from toolgate.upstreams.router import Route, Router
from toolgate.upstreams.wrappers import Counted

KEYS = tuple(
    Key(name=name, key=Secret(f"{name}-key"), scopes=scopes)  # type: ignore[arg-type]
    for name, scopes in (("ann", ("chat",)), ("bob", ("chat",)), ("root", ("chat", "tools", "admin")))
)
PRICE = Price(input=1.0, output=2.0)
ANSWER = ModelResponse((Text("Hello there, how are you?"),), "stop", Usage(400_000, 100_000))
"""It costs 0.6."""


class Watched(LocalCounters):
    """Counters that tell when a request was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = asyncio.Event()

    def settle(self, hold: Hold, tokens: int) -> None:
        super().settle(hold, tokens)
        self.settled.set()


class Gate:
    """A server at `url`, and what stands behind it."""

    def __init__(self, url: str, model: ScriptedModel, purse: Purse, counters: Watched) -> None:
        self.url = url
        self.model = model
        self.purse = purse
        self.counters = counters

    async def ask(self, path: str, payload: Any, *headers: str, who: str = "ann") -> Heard:
        async with Caller(self.url) as caller:
            await caller.post(path, payload, f"authorization: Bearer {who}-key", *headers)
            return await caller.answer()

    async def get(self, path: str, who: str = "root") -> Heard:
        async with Caller(self.url) as caller:
            host = self.url.removeprefix("http://")
            head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {who}-key\r\n\r\n"
            caller.writer.write(head.encode())
            return await caller.answer()


def _endpoints(conversations: Conversations) -> list[Endpoint]:
    paths = {
        "/v1/chat/completions": OPENAI_CHAT,
        "/v1/responses": OPENAI_RESPONSES,
        "/v1/messages": ANTHROPIC,
        "/api/chat": OLLAMA,
    }
    return [Endpoint("POST", path, conversations.handler(one), one.server) for path, one in paths.items()]


def _limited(key: Key, limits: KeyLimits) -> Key:
    budget = KeyBudget(amount=limits.budget.amount, period=limits.budget.period) if limits.budget else None
    return replace(
        key,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        budget=budget,
    )


@asynccontextmanager
async def open_gate(
    script: Iterable[Entry],
    limits: dict[str, KeyLimits] | None = None,
    *,
    path: Path | None = None,
    terms: Terms = Terms(),  # noqa: B008  # an immutable value
    lease: float = 30.0,
    more: Sequence[Endpoint] = (),
    **options: Any,
) -> AsyncIterator[Gate]:
    """Serve the four dialects and GET /v1/keys."""
    model, database, counters = ScriptedModel(script, **options), Database(path), Watched()
    purse = Purse(SpendingStore(database), every=60)
    router = Router([Route("m", Counted(model), price=PRICE)])
    traced = Traced(Log("error"), Metrics())
    endpoints = [*_endpoints(Conversations(router, Pace(), traced)), *more]
    once = Idempotency(IdempotencyStore(database, lease=lease), terms)
    watch = Limits(limits or {}, counters, purse, lambda name: router.find(name).price, PRICE)
    config = Config(keys=tuple([_limited(key, (limits or {}).get(key.name, KeyLimits())) for key in KEYS]))
    access = Access(config, database, traced)
    endpoints = [*watch.around(once.around(endpoints)), *KeyTable(config, access, purse, traced.log).endpoints()]
    halves = {"/": OPENAI_CHAT.server, "/v1/messages": ANTHROPIC.server, "/api/": OLLAMA.server}
    app = App(endpoints, halves, access.keys, Origins(config), traced)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    async with listening(served) as url:
        yield Gate(url, model, purse, counters)
    await purse.aclose()
    await database.aclose()
