"""A server on a real socket whose keys have limits and whose requests may be keyed, over a model that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.api.http_client import HttpConnection, HttpResponse
from toolgate.api.chat import ChatHandler
from toolgate.api.keys import KeyEndpoints
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.auth.key_registry import KeyRegistry
from toolgate.config import Config, KeySettings, Secret
from toolgate.config.settings import KeyBudgetSettings
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine.run_limits import Price
from toolgate.http.application import Application, HttpRoute
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.limits import KeyLimits, LocalBudgets, LocalCounters, RateLimitReservation
from toolgate.limits.admission import AdmissionControl
from toolgate.limits.idempotency import Idempotency, IdempotencyPollingLimits
from toolgate.storage.database import Database
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry
from toolgate.testing import Entry, ScriptedModel
from toolgate.upstreams.router import ModelRoute, Router
from toolgate.upstreams.wrappers import UsageCountingModel

KEYS = tuple(
    KeySettings(name=name, key=Secret(f"{name}-key"), scopes=scopes)  # type: ignore[arg-type]
    for name, scopes in (("ann", ("chat",)), ("bob", ("chat",)), ("root", ("chat", "tools", "admin")))
)
PRICE = Price(input=1.0, output=2.0)
ANSWER = ModelResponse((Text("Hello there, how are you?"),), "stop", Usage(400_000, 100_000))
"""It costs 0.6."""


class WatchedCounters(LocalCounters):
    """Counters with an event for a settled request."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = asyncio.Event()

    def settle(self, reservation: RateLimitReservation, tokens: int) -> None:
        super().settle(reservation, tokens)
        self.settled.set()


class LimitedServer:
    """A server with limits, its model, budgets and counters."""

    def __init__(
        self,
        url: str,
        model: ScriptedModel,
        budgets: LocalBudgets,
        counters: WatchedCounters,
        admission: AdmissionControl,
    ) -> None:
        self.url = url
        self.admission = admission
        self.model = model
        self.budgets = budgets
        self.counters = counters

    async def ask(self, path: str, payload: Any, *headers: str, who: str = "ann") -> HttpResponse:
        async with HttpConnection(self.url) as caller:
            await caller.post(path, payload, f"authorization: Bearer {who}-key", *headers)
            return await caller.response()

    async def get(self, path: str, who: str = "root") -> HttpResponse:
        async with HttpConnection(self.url) as caller:
            host = self.url.removeprefix("http://")
            head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {who}-key\r\n\r\n"
            caller.writer.write(head.encode())
            return await caller.response()


def _endpoints(conversations: ChatHandler) -> list[HttpRoute]:
    paths = {
        "/v1/chat/completions": OPENAI_CHAT,
        "/v1/responses": OPENAI_RESPONSES,
        "/v1/messages": ANTHROPIC,
        "/api/chat": OLLAMA,
    }
    return [HttpRoute("POST", path, conversations.handler(one), one.server) for path, one in paths.items()]


def _limited(key: KeySettings, limits: KeyLimits) -> KeySettings:
    budget = KeyBudgetSettings(amount=limits.budget.amount, period=limits.budget.period) if limits.budget else None
    return replace(
        key,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        budget=budget,
    )


@asynccontextmanager
async def limited_server(
    script: Iterable[Entry],
    limits: dict[str, KeyLimits] | None = None,
    *,
    path: Path | None = None,
    idempotency: IdempotencyPollingLimits = IdempotencyPollingLimits(),  # noqa: B008  # an immutable value
    lease: float = 30.0,
    more: Sequence[HttpRoute] = (),
    **options: Any,
) -> AsyncIterator[LimitedServer]:
    """Serve the four dialects and GET /v1/keys."""
    model, database, counters = ScriptedModel(script, **options), Database(path), WatchedCounters()
    budgets = LocalBudgets(SpendingStore(database), every=60)
    router = Router([ModelRoute("m", UsageCountingModel(model), price=PRICE)])
    telemetry = Telemetry(Logger("error"), Metrics())
    endpoints = [*_endpoints(ChatHandler(router, StreamKeepaliveTimings(), telemetry)), *more]
    once = Idempotency(IdempotencyStore(database, lease=lease), idempotency)
    watch = AdmissionControl(limits or {}, counters, budgets, lambda name: router.find(name).price, PRICE)
    config = Config(keys=tuple([_limited(key, (limits or {}).get(key.name, KeyLimits())) for key in KEYS]))
    access = KeyRegistry(config, database, telemetry)
    endpoints = [*watch.wrap(once.wrap(endpoints)), *KeyEndpoints(config, access, budgets, telemetry.log).endpoints()]
    error_encoders = {"/": OPENAI_CHAT.server, "/v1/messages": ANTHROPIC.server, "/api/": OLLAMA.server}
    app = Application(endpoints, error_encoders, access.authenticator, OriginPolicy(config), telemetry)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    async with listening(served) as url:
        yield LimitedServer(url, model, budgets, counters, watch)
    await budgets.aclose()
    await database.aclose()
