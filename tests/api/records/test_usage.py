"""The usage of keys is summed up by day and model, survives a restart, and is shown to its owner (spec: D1, E5)."""

from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from typer.testing import CliRunner

from tests.api.records.record_server import RecordServer, record_server
from tests.clients.scenes import HELLO
from toolgate.api.records.usage import UsageRecorder
from toolgate.api.records.write_queue import WriteQueue, WriteQueueLimits
from toolgate.cli.commands import app
from toolgate.config import Secret
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import Usage
from toolgate.engine.run_limits import Price
from toolgate.storage.database import Database
from toolgate.storage.usage import UsageStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import CLIENT_LEFT, EndedRequests, RequestRecord

ASK: Any = [{"role": "user", "content": "Hi"}]


def ask(kept: RecordServer, model: str = "openai_chat", who: str = "ann", times: int = 1) -> None:
    with OpenAI(base_url=f"{kept.url}/v1", api_key=f"{who}-key", max_retries=0) as client:
        for number in range(times):
            if number % 2:
                list(client.chat.completions.create(model=model, messages=ASK, stream=True))
            else:
                client.chat.completions.create(model=model, messages=ASK)


def test_usage_is_listed_by_key_model_and_day() -> None:
    with record_server() as kept:
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


def test_only_an_admin_sees_the_usage_of_others() -> None:
    with record_server() as kept:
        kept.play(HELLO, HELLO)
        ask(kept)
        ask(kept, who="bob")
        assert [row["key"] for row in kept.listed("/v1/usage?by=key&key=bob")] == ["ann"]
        assert [row["key"] for row in kept.listed("/v1/usage?by=key&key=bob", who="eve")] == ["bob"]


def test_a_request_that_no_model_answered_is_not_counted() -> None:
    with record_server() as kept:
        kept.play(UpstreamUnavailable("out of order"))
        for model in ("openai_chat", "there-is-no-such-model"):
            assert kept.ask("/v1/chat/completions", method="POST", body={"model": model, "messages": ASK})[0] >= 400
        (row,) = kept.listed("/v1/usage", who="eve")
        assert (row["model"], row["requests"], row["errors"]) == ("openai_chat", 0, 1)


def test_usage_by_the_hour_has_the_same_sums() -> None:
    with record_server() as kept:
        kept.play(*[HELLO] * 3)
        ask(kept, times=3)
        (day,), (hour,) = kept.listed("/v1/usage?by=model,day"), kept.listed("/v1/usage?by=model,hour")
        assert (hour["hour"][:10], len(hour["hour"])) == (day["day"], 13)
        assert {name: value for name, value in hour.items() if name != "hour"}.items() <= day.items()
        assert kept.listed(f"/v1/usage?by=hour&since={hour['hour']}:00&until={hour['hour']}:59")
        assert kept.listed("/v1/usage?by=hour&until=2020-01-31") == []


def test_latency_is_returned_as_percentiles_to_callers_that_may_read_it() -> None:
    with record_server() as kept:
        kept.play(*[HELLO] * 4)
        ask(kept, times=3)
        ask(kept, "anthropic", who="bob")
        (row,) = kept.listed("/v1/latency")
        assert (row["model"], row["requests"]) == ("openai_chat", 3)
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert 0 < row["first_token_p50_ms"] <= row["p99_ms"]
        rows = kept.listed("/v1/latency?by=key,model,hour", "eve")
        assert [(one["key"], one["model"], one["requests"]) for one in rows] == [
            ("ann", "openai_chat", 3),
            ("bob", "anthropic", 1),
        ]
        assert kept.listed("/v1/latency?key=bob&by=key")[0]["key"] == "ann"
        assert kept.listed("/v1/latency?model=anthropic") == []
        assert kept.listed("/v1/latency?until=2020-01-31&since=2020-01-30") == []
        assert kept.ask("/v1/latency?by=colour")[0] == 400


def test_a_background_response_is_counted_once() -> None:
    with record_server() as kept, OpenAI(base_url=f"{kept.url}/v1", api_key="ann-key", max_retries=0) as client:
        kept.play(HELLO)
        made = client.responses.create(model="openai_chat", input="Hi", background=True, stream=True)
        assert list(made)[-1].type == "response.completed"
        assert [row["requests"] for row in kept.listed("/v1/usage?by=key")] == [1]


@pytest.mark.parametrize(
    "query",
    [
        "by=colour",
        "by=day,hour",
        "by=hour&since=soon",
        "since=yesterday",
        "until=1",
        "since=2026-02-30",
        "until=20260131",
    ],
)
def test_a_malformed_query_is_refused(query: str) -> None:
    with record_server() as kept:
        assert kept.ask(f"/v1/usage?{query}")[0] == 400


@pytest.mark.parametrize("until", ["9999-12-31", "9999-12-31T23:59:59", "253402300799"])
@pytest.mark.parametrize(
    "path", ["/v1/usage?by=hour", "/v1/latency?by=model", "/v1/requests?limit=1", "/v1/runs?limit=1"]
)
def test_a_range_may_end_at_the_end_of_time(path: str, until: str) -> None:
    with record_server() as kept:
        status, answer = kept.ask(f"{path}&until={until}")
        assert status == 200, answer


async def test_tokens_cost_what_their_model_costs() -> None:
    store = UsageStore(database := Database(None))
    writer = WriteQueue(database, Logger("error"), Metrics())
    ended = EndedRequests()
    meter = UsageRecorder(store, writer, {"dear": Price(2.0, 10.0), "free": Price()}.__getitem__, ended)
    for model in ("dear", "free", "dear"):
        ended.add(RequestRecord("r", caller="ann", model=model, upstream="u", usage=Usage(100_000, 50_000)))
    meter.flush()
    await writer.flush()
    assert {row["model"]: row["cost"] for row in await store.sums(["model"])} == {"dear": 1.4, "free": 0.0}
    await database.aclose()


async def test_a_request_costs_what_its_model_cost_when_it_ended() -> None:
    store = UsageStore(database := Database(None))
    writer = WriteQueue(database, Logger("error"), Metrics())
    ended = EndedRequests()
    meter = UsageRecorder(store, writer, lambda model: Price(2.0, 0.0), ended)
    for later in ({"m": Price(50.0, 0.0)}, {"m": Price()}):
        ended.add(RequestRecord("r", caller="ann", model="m", upstream="u", usage=Usage(1_000_000)))
        meter.configure(later.__getitem__)
    meter.flush()
    await writer.flush()
    assert [row["cost"] for row in await store.sums(["model"])] == [52.0]
    await database.aclose()


async def test_what_failed_answers_used_counts_and_each_is_an_error_unless_its_client_has_left() -> None:
    store = UsageStore(database := Database(None))
    writer = WriteQueue(database, Logger("error"), Metrics())
    ended = EndedRequests()
    meter = UsageRecorder(store, writer, lambda model: Price(), ended)
    used = Usage(input=5, output=4, cache_read=3, reasoning=2, estimated=True)
    for status in (200, 502, CLIENT_LEFT):
        ended.add(RequestRecord("r", caller="ann", model="m", upstream="u", status=status, usage=used))
    ended.add(RequestRecord("r", caller="ann", model="m", status=404))
    meter.flush()
    await writer.flush()
    [row] = await store.sums(["key"])
    assert (row["requests"], row["errors"], row["estimated"]) == (3, 2, 3)
    assert [row[f"{kind}_tokens"] for kind in ("input", "output", "cached", "reasoning")] == [15, 12, 9, 6]
    await database.aclose()


async def test_usage_is_not_lost_while_other_records_fill_the_queue() -> None:
    store = UsageStore(database := Database(None))
    writer = WriteQueue(database, Logger("error"), Metrics(), WriteQueueLimits(most=3))
    ended = EndedRequests()
    meter = UsageRecorder(store, writer, lambda model: Price(), ended)
    for _ in range(3):
        writer.put("ann", "run", lambda db: None)
    for _ in range(2):
        ended.add(RequestRecord("r", caller="ann", model="m", upstream="u", usage=Usage(5)))
        meter.flush()
    await writer.flush()
    meter.flush()
    await writer.flush()
    assert [(row["requests"], row["input_tokens"]) for row in await store.sums(["key"])] == [(2, 10)]
    await database.aclose()


def test_usage_survives_a_restart(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/toolgate.db")
    for total in (1, 2):
        with record_server(storage=storage) as kept:
            kept.play(HELLO)
            ask(kept)
            if total == 2:
                assert [row["requests"] for row in kept.listed("/v1/usage?by=key")] == [2]


def test_the_command_shows_a_table_or_json() -> None:
    with record_server() as kept:
        kept.play(HELLO)
        ask(kept)
        env = {"COLUMNS": "200", "TOOLGATE_URL": kept.url, "TOOLGATE_KEY": "eve-key"}
        shown = CliRunner().invoke(app, ["usage", "--by", "key,model"], env=env)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.split("\t")[:2] == ["ann", "openai_chat"]
        hourly = CliRunner().invoke(app, ["usage", "--by", "hour,key"], env=env).stdout.splitlines()[0].split("\t")
        assert (len(hourly), hourly[0][10:11], hourly[1]) == (8, "T", "ann")
        for word in ("12", "5"):
            assert word in shown.stdout
        assert '"requests": 1' in CliRunner().invoke(app, ["usage", "--json", "--of", "ann"], env=env).stdout
        none = CliRunner().invoke(app, ["usage", "--until", "2020-01-01"], env=env)
        assert (none.exit_code, none.stdout, none.stderr) == (0, "", "Nothing was used.\n")
        assert CliRunner().invoke(app, ["usage", "--by", "colour"], env=env).exit_code == 1
