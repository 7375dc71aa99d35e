"""Requests that name no model, and names that alias patterns catch, in every client API (spec: C1)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, PATHS, ask, body
from tests.stage import MEMORY, QUIET
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import PriceSettings, ServerSettings
from toolgate.http.listener import listening
from toolgate.limits.prices import prices_by_name
from toolgate.testing import ScriptedModel

every_client = pytest.mark.parametrize("client", CLIENTS)
KEY = "x-api-key: tg-ann-0123456789"


def model(name: str, **more: Any) -> ModelConfig:
    return ModelConfig(name=name, targets=(TargetConfig(upstream=BUILTIN, model=name),), **more)


@asynccontextmanager
async def serving(*models: ModelConfig, **changes: Any) -> AsyncGenerator[str]:
    """A server whose models all answer with their own name."""
    scripted = {one.name: ScriptedModel([f"I am {one.name}."] * 8) for one in models}
    config = Config(server=ServerSettings(port=0), models=models, storage=MEMORY, log=QUIET, **changes)
    async with listening(Toolgate(config, scripted)) as url:
        yield url


def unnamed(client: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in body(client, "", stream=False, **more).items() if name != "model"}


@every_client
@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}])
async def test_a_request_without_a_model_goes_to_the_first_and_the_answer_names_it(
    client: str, given: dict[str, Any]
) -> None:
    async with serving(model("first"), model("second")) as url:
        answer = await ask(url, PATHS[client], {**unnamed(client), **given})
    assert answer.status == 200
    assert answer.json["model"] == "first"
    assert b"I am first." in answer.body


@every_client
async def test_default_model_names_another(client: str) -> None:
    async with serving(model("first"), model("second"), default_model="second") as url:
        answer = await ask(url, PATHS[client], unnamed(client))
    assert b"I am second." in answer.body


async def test_generate_and_counting_and_loading_take_the_default() -> None:
    async with serving(model("first")) as url:
        generated = await ask(url, "/api/generate", {"prompt": "Hi", "stream": False})
        counted = await ask(url, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]})
        loaded = await ask(url, "/api/generate", {"stream": False})
    assert generated.json["response"] == "I am first."
    assert counted.json["input_tokens"] > 0
    assert loaded.json["model"] == "first"


async def test_a_background_response_is_stored_with_the_model_that_answers_it() -> None:
    async with serving(model("first")) as url:
        queued = await ask(url, "/v1/responses", {"input": "Hi", "background": True})
    assert queued.json["model"] == "first"


@every_client
async def test_a_key_that_may_use_one_model_gets_that_one(client: str) -> None:
    key = KeySettings(name="ann", key=Secret("tg-ann-0123456789"), models=("second",))
    async with serving(model("first"), model("second"), keys=(key,)) as url:
        answer = await ask(url, PATHS[client], unnamed(client), KEY)
        named = await ask(url, PATHS[client], body(client, "first", stream=False), KEY)
    assert b"I am second." in answer.body
    assert named.status == 404


async def test_a_default_that_the_key_may_not_use_is_refused_without_being_named() -> None:
    key = KeySettings(name="ann", key=Secret("tg-ann-0123456789"), models=("first",))
    async with serving(model("first"), model("second"), keys=(key,), default_model="second") as url:
        answer = await ask(url, PATHS["openai_chat"], unnamed("openai_chat"), KEY)
    assert answer.status == 404
    assert b"second" not in answer.body


@every_client
@pytest.mark.parametrize("wrong", [5, True, ["first"], {}])
async def test_a_model_that_is_no_string_is_still_refused(client: str, wrong: Any) -> None:
    async with serving(model("first")) as url:
        answer = await ask(url, PATHS[client], {**unnamed(client), "model": wrong})
    assert answer.status == 400


@every_client
async def test_an_alias_pattern_catches_names_that_clients_have_built_in(client: str) -> None:
    models = model("first", aliases=("claude-*",)), model("second", aliases=("*", "claude-3-*"))
    async with serving(*models) as url:
        names = "claude-sonnet-4-5", "claude-3-opus-20240229", "gpt-4", "first"
        answers = [await ask(url, PATHS[client], body(client, name, stream=False)) for name in names]
    received = [b"I am first." in answer.body for answer in answers]
    assert received == [True, False, False, True]
    assert answers[1].json["model"] == "claude-3-opus-20240229"


@pytest.mark.parametrize(
    ("pattern", "status"),
    [("gpt-*", 200), ("*", 200), ("g*", 200), ("dear", 200), ("gpt-?", 404), ("gpt-[*]", 404), ("gpt-4*", 404)],
)
async def test_a_key_uses_a_model_whose_alias_pattern_its_own_pattern_covers(pattern: str, status: int) -> None:
    key = KeySettings(name="ann", key=Secret("tg-ann-0123456789"), models=(pattern,))
    async with serving(model("dear", aliases=("gpt-*",)), model("other"), keys=(key,)) as url:
        answers = [
            await ask(url, PATHS["openai_chat"], body("openai_chat", name, stream=False), KEY)
            for name in ("gpt-4o", "gpt-5", "dear")
        ]
    assert [answer.status for answer in answers] == [status] * 3


def test_a_name_caught_by_a_pattern_costs_what_its_model_costs() -> None:
    """Reserving nothing for it would let requests under way spend beyond a key's budget."""
    dear = model("first", aliases=("gpt-*",), price=PriceSettings(input=3.0, output=15.0))
    price_of = prices_by_name(Config(models=(dear,)))
    assert price_of("gpt-4").output == price_of("first").output == 15.0
    assert price_of("unknown").output == 0.0
