"""A run of server tools ends when the budget or the tokens of its key are used up, whatever rounds are left (spec: E5)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS
from tests.tools.execution.toolwork import Oracle, at_work, call, results
from toolgate.config import Secret
from toolgate.config.settings import KeyBudgetSettings, KeySettings, PriceSettings
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.runs.scheduler import RunAttempt
from toolgate.storage.database import CommitUncertain
from toolgate.storage.responses import ResponseStore

ROUNDS = 30
USED_UP = "the budget of this key is used up"


def keys(amount: float) -> tuple[KeySettings, ...]:
    budget = KeyBudgetSettings(amount=amount, period="total")
    return (KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat", "tools"), budget=budget),)


def script() -> list[Any]:
    """A model that calls a tool again and again, at a price of 1 each time, until it is told that no more is run."""
    rounds = [
        ModelResponse((call(number=n, arguments=f'{{"text":"{n}"}}'),), "tool_calls", Usage(1)) for n in range(ROUNDS)
    ]
    return [*rounds, ModelResponse((Text("Enough."),), "stop", Usage(1))]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_run_calls_no_more_tools_once_its_budget_is_used_up(tmp_path: Path, client: str, stream: bool) -> None:
    """One request with `max_tool_rounds: 0` spent 39 times the budget of its key."""
    oracle, price = Oracle(tmp_path / "runs"), PriceSettings(input=1_000_000)
    async with at_work(oracle, keys=keys(5), of_models={"price": price}) as work:
        played = work.play(*script())
        response = await work.ask(client, stream=stream, key="ann-key", max_tool_rounds=0)
        assert response.status == 200
        assert len(oracle.runs) == 4  # the fifth answer of the model uses the budget up
        assert USED_UP in results(played.requests[5])[-1]
        assert len(played.requests) <= 7
        refused = await work.ask(client, key="ann-key")
        assert refused.status == 429


async def test_a_background_response_does_so_too(tmp_path: Path) -> None:
    oracle, price = Oracle(tmp_path / "runs"), PriceSettings(input=1_000_000)
    storage = Secret(f"sqlite:///{tmp_path / 'toolgate.db'}")
    async with at_work(oracle, keys=keys(5), of_models={"price": price}, storage=storage) as work:
        played = work.play(*script())
        more: dict[str, Any] = {"background": True, "store": True, "max_tool_rounds": 0}
        made = await work.ask("openai_responses", stream=True, key="ann-key", **more)
        assert b"response.completed" in made.body
        assert len(oracle.runs) == 4
        # Asked last: a run whose node was held up takes a step again, and has then made one request more.
        assert USED_UP in results(played.requests[-1])[-1]


@pytest.mark.parametrize("how", ["cancel", "release", "lose", "uncertain"])
async def test_a_response_is_charged_when_nobody_hears_that_its_end_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its cost stayed reserved for a quarter of an hour, or until the next start, and was then lost."""
    attempts: list[RunAttempt] = []
    save, init = ResponseStore.save, RunAttempt.__init__

    async def save_and_interrupt(store: ResponseStore, response: Any, *also: Any) -> None:
        await save(store, response, *also)
        if response.body["status"] == "completed":
            if how == "uncertain":
                raise CommitUncertain
            getattr(attempts[0], how)()
            await asyncio.sleep(0)  # the interruption arrives here

    def note(attempt: RunAttempt, *values: Any) -> None:
        init(attempt, *values)
        attempts.append(attempt)

    monkeypatch.setattr(ResponseStore, "save", save_and_interrupt)
    monkeypatch.setattr(RunAttempt, "__init__", note)
    oracle, price = Oracle(tmp_path / "runs"), PriceSettings(input=1_000_000)
    async with at_work(oracle, keys=keys(1), of_models={"price": price}) as work:
        work.play(ModelResponse((Text("Dear."),), "stop", Usage(1)))
        made = await work.ask("openai_responses", key="ann-key", background=True, store=True)
        assert made.status == 200
        while not attempts:  # noqa: ASYNC110 - it begins in a task of the server
            await asyncio.sleep(0.01)
        await attempts[0].over.wait()
        refused = await work.ask(key="ann-key")
        assert refused.json["error"]["code"] == "insufficient_quota"
        found = await work.get(f"/v1/responses/{made.json['id']}", key="ann-key")
        assert found.json["status"] == "completed"


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
async def test_a_run_calls_no_more_tools_once_it_has_used_the_tokens_of_a_minute(
    tmp_path: Path, background: bool
) -> None:
    """What one run used was counted for other requests, and did not end the run."""
    oracle = Oracle(tmp_path / "runs")
    ann = KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat", "tools"), tokens_per_minute=5)
    async with at_work(oracle, keys=(ann,)) as work:
        played = work.play(*script())
        more: dict[str, Any] = {"background": background, "store": True, "max_tool_rounds": 0}
        made = await work.ask("openai_responses", stream=True, key="ann-key", **more)
        assert b"response.completed" in made.body
        assert len(oracle.runs) == 4
        assert "this run has used the tokens per minute of its key" in results(played.requests[-1])[-1]


async def test_a_run_within_its_budget_goes_on(tmp_path: Path) -> None:
    oracle, price = Oracle(tmp_path / "runs"), PriceSettings(input=1_000_000)
    async with at_work(oracle, keys=keys(100), of_models={"price": price}) as work:
        work.play(*script())
        assert "Enough." in (await work.ask(key="ann-key", max_tool_rounds=0)).body.decode()
        assert len(oracle.runs) == ROUNDS
