"""What a key is charged when a fallback at another price answers in place of the model that was asked for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, ask, body
from tests.api.responses.stateful import until
from tests.stage import MEMORY, QUIET
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import (
    KeyBudgetSettings,
    PriceSettings,
    RunLimitSettings,
    ServerSettings,
    ServerToolSettings,
)
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.limits.prices import reservation_prices
from toolgate.testing import Entry, ScriptedModel

KEY = "x-api-key: tg-ann-0123456789"
ANSWER = ModelResponse((Text("Hello."),), "stop", Usage(400_000, 100_000))
FREE, CHEAP, DEAR = PriceSettings(), PriceSettings(input=1.0, output=2.0), PriceSettings(input=10.0, output=20.0)


def model(name: str, price: PriceSettings, **more: tuple[str, ...]) -> ModelConfig:
    return ModelConfig(name=name, targets=(TargetConfig(upstream=BUILTIN, model=name),), price=price, **more)  # type: ignore[arg-type]


MODELS = (model("cheap", CHEAP, fallbacks=("dear",)), model("dear", DEAR), model("free", FREE, fallbacks=("cheap",)))


@asynccontextmanager
async def serving(**scripts: list[Entry]) -> AsyncIterator[str]:
    key = KeySettings(
        name="ann", key=Secret("tg-ann-0123456789"), scopes=("chat", "admin"), budget=KeyBudgetSettings(amount=1000)
    )
    config = Config(server=ServerSettings(port=0), models=MODELS, keys=(key,), storage=MEMORY, log=QUIET)
    scripted = {one.name: ScriptedModel(scripts.get(one.name, [])) for one in MODELS}
    async with listening(Toolgate(config, scripted)) as url:
        yield url


async def spent(url: str) -> tuple[float, float]:
    """What the key has spent of its budget, and what the usage report says that it cost."""
    async with httpx.AsyncClient(base_url=url, headers=dict([KEY.split(": ")])) as client:
        keys = (await client.get("/v1/keys")).json()["data"]
        rows = (await client.get("/v1/usage")).json()["data"]
    return keys[0]["spent"]["total"], sum(row["cost"] for row in rows)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_price_is_that_of_the_model_that_answered(client: str, stream: bool) -> None:
    async with serving(cheap=[UpstreamUnavailable("No."), ANSWER], dear=[ANSWER]) as url:
        for cost in (6.0, 6.6):
            await ask(url, PATHS[client], body(client, "cheap", stream=stream), KEY)
            assert await spent(url) == pytest.approx((cost, cost))


async def test_the_cost_of_a_run_is_measured_at_the_price_of_the_model_that_answers() -> None:
    """A limit of 15 lets two steps of a fallback at 10 each run, and not fifteen at the price of the model that failed."""
    asked = ModelResponse((ToolCall("call_1", "clock", "{}"),), "tool_calls", Usage(1_000_000))
    dear = ScriptedModel([asked, asked, ANSWER])
    tools = ServerToolSettings(limits=RunLimitSettings(cost=15.0, repeats=0))
    config = Config(server=ServerSettings(port=0), models=MODELS, storage=MEMORY, log=QUIET, tools=tools)
    scripted = {"cheap": ScriptedModel([UpstreamUnavailable("No.")] * 20), "dear": dear, "free": ScriptedModel([])}
    async with listening(Toolgate(config, scripted)) as url:
        sent = body("openai_chat", "cheap", stream=False, tool_execution="auto", use_server_tools=True)
        await ask(url, PATHS["openai_chat"], sent)
    assert len(dear.requests) == 3
    assert "in cost is reached" in str(dear.requests[2].messages[-1])


async def test_steps_before_a_restart_keep_the_price_of_the_model_that_answered_them(tmp_path: Path) -> None:
    """They were charged at the price of the model that the request named."""
    called = ModelResponse((ToolCall("call_1", "clock", "{}"),), "tool_calls", Usage(1_000_000))
    key = KeySettings(
        name="ann", key=Secret("tg-ann-0123456789"), scopes=("chat", "admin"), budget=KeyBudgetSettings(amount=1000)
    )
    config = Config(
        server=ServerSettings(port=0, drain_seconds=0),
        models=MODELS,
        keys=(key,),
        storage=Secret(f"sqlite:///{tmp_path / 'toolgate.db'}"),
        log=QUIET,
    )
    asked_again = asyncio.Event()

    async def never(_: ModelRequest) -> str:
        asked_again.set()
        return await asyncio.Future()

    headers = dict([KEY.split(": ")])
    down = [UpstreamUnavailable("No.")] * 9
    before = {"cheap": ScriptedModel(down), "dear": ScriptedModel([called, never]), "free": ScriptedModel([])}
    async with listening(Toolgate(config, before)) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        sent = {"model": "cheap", "input": "Hello.", "background": True, "tool_execution": "auto"}
        accepted = (await client.post("/v1/responses", json=sent | {"use_server_tools": ["clock"]})).json()
        await asyncio.wait_for(asked_again.wait(), 30)
    after = {name: ScriptedModel([ANSWER] if name == "cheap" else []) for name in before}
    async with listening(Toolgate(config, after)) as url:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:

            async def ended() -> bool:
                response = await client.get(f"/v1/responses/{accepted['id']}")
                return bool(response.json()["status"] == "completed")

            await until(ended)
        total, reported = await spent(url)
    # The dear step, what the interrupted question to it contained, and the answer of the cheap model.
    assert total == pytest.approx(reported)
    assert 10.6 <= total < 10.7


def test_the_reservation_covers_the_dearest_model_that_may_answer() -> None:
    prices = reservation_prices(Config(models=MODELS))
    assert [prices(name).output for name in ("cheap", "dear", "free", "unknown")] == [20.0, 20.0, 2.0, 0.0]
