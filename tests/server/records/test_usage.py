"""What keys use is added up by day and model, survives a restart, and is told to those it concerns (D1, E5)."""

from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from typer.testing import CliRunner

from tests.clients.scenes import HELLO
from tests.server.records.keeping import Keeping, keeping
from toolgate.cli.commands import app
from toolgate.config import Secret
from toolgate.conversation.errors import Unavailable
from toolgate.conversation.events import Usage
from toolgate.engine.limits import Price
from toolgate.server.records.usage import Meter
from toolgate.server.records.writer import Writer
from toolgate.storage.database import Database
from toolgate.storage.usage import UsageStore
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redact import Redactor
from toolgate.telemetry.traced import RequestRecord, Traced

ASK: Any = [{"role": "user", "content": "Hi"}]


def ask(kept: Keeping, model: str = "openai_chat", who: str = "ann", times: int = 1) -> None:
    with OpenAI(base_url=f"{kept.url}/v1", api_key=f"{who}-key", max_retries=0) as client:
        for number in range(times):
            if number % 2:
                list(client.chat.completions.create(model=model, messages=ASK, stream=True))
            else:
                client.chat.completions.create(model=model, messages=ASK)


def test_usage_is_told_by_key_model_and_day() -> None:
    with keeping() as kept:
        kept.play(*[HELLO] * 7)
        ask(kept, times=4)
        ask(kept, "anthropic")
        ask(kept, "ollama", who="bob", times=2)
        everything = kept.listed("/v1/usage?by=key", who="eve")
        assert [(row["key"], row["requests"], row["input_tokens"], row["output_tokens"]) for row in everything] == [
            ("ann", 5, 60, 25),
            ("bob", 2, 24, 10),
        ]
        own = kept.listed("/v1/usage?by=key,model")
        assert [(row["key"], row["model"], row["requests"]) for row in own] == [
            ("ann", "anthropic", 1),
            ("ann", "openai_chat", 4),
        ]
        [row] = kept.listed("/v1/usage?by=day")
        assert (row["requests"], row["cached_tokens"]) == (5, 20)
        assert kept.listed(f"/v1/usage?since={row['day']}&until={row['day']}&by=day") == [row]
        assert kept.listed("/v1/usage?until=2020-01-01") == []


def test_nobody_but_an_admin_sees_what_others_use() -> None:
    with keeping() as kept:
        kept.play(HELLO, HELLO)
        ask(kept)
        ask(kept, who="bob")
        assert [row["key"] for row in kept.listed("/v1/usage?by=key&key=bob")] == ["ann"]
        assert [row["key"] for row in kept.listed("/v1/usage?by=key&key=bob", who="eve")] == ["bob"]


def test_a_request_that_no_model_answered_is_not_counted() -> None:
    with keeping() as kept:
        kept.play(Unavailable("out of order"))
        for model in ("openai_chat", "there-is-no-such-model"):
            assert kept.ask("/v1/chat/completions", method="POST", body={"model": model, "messages": ASK})[0] >= 400
        assert kept.listed("/v1/usage", who="eve") == []


def test_a_background_response_is_counted_once() -> None:
    with keeping() as kept, OpenAI(base_url=f"{kept.url}/v1", api_key="ann-key", max_retries=0) as client:
        kept.play(HELLO)
        made = client.responses.create(model="openai_chat", input="Hi", background=True, stream=True)
        assert list(made)[-1].type == "response.completed"
        assert [row["requests"] for row in kept.listed("/v1/usage?by=key")] == [1]


@pytest.mark.parametrize("query", ["by=colour", "since=yesterday", "until=1", "since=2026-02-30", "until=20260131"])
def test_a_question_that_makes_no_sense_is_refused(query: str) -> None:
    with keeping() as kept:
        assert kept.ask(f"/v1/usage?{query}")[0] == 400


async def test_tokens_cost_what_their_model_costs() -> None:
    traced = Traced(Log("error", "json", Redactor(())), Metrics())
    store = UsageStore(database := Database(None))
    meter = Meter(store, writer := Writer(database, traced))
    meter.price_of = {"dear": Price(2.0, 10.0), "free": Price()}.__getitem__
    for model in ("dear", "free", "dear"):
        meter.answered(RequestRecord("r", caller="ann", model=model, usage=Usage(100_000, 50_000)))
    meter.flush()
    await writer.flush()
    assert {row["model"]: row["cost"] for row in await store.sums(["model"])} == {"dear": 1.4, "free": 0.0}
    await database.aclose()


def test_usage_survives_a_restart(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/toolgate.db")
    for total in (1, 2):
        with keeping(storage=storage) as kept:
            kept.play(HELLO)
            ask(kept)
            if total == 2:
                assert [row["requests"] for row in kept.listed("/v1/usage?by=key")] == [2]


def test_the_command_shows_a_table_or_json() -> None:
    with keeping() as kept:
        kept.play(HELLO)
        ask(kept)
        env = {"COLUMNS": "200", "TOOLGATE_URL": kept.url, "TOOLGATE_KEY": "eve-key"}
        shown = CliRunner().invoke(app, ["usage", "--by", "key,model"], env=env)
        assert shown.exit_code == 0, shown.output
        for word in ("ann", "openai_chat", "12", "5", "requests"):
            assert word in shown.stdout
        assert '"requests": 1' in CliRunner().invoke(app, ["usage", "--json", "--of", "ann"], env=env).stdout
        none = CliRunner().invoke(app, ["usage", "--until", "2020-01-01"], env=env)
        assert (none.exit_code, none.stdout, none.stderr) == (0, "", "Nothing was used.\n")
        assert CliRunner().invoke(app, ["usage", "--by", "colour"], env=env).exit_code == 1
