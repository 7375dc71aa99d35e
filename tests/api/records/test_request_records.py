"""Every request leaves one record without its content, which its owner and an admin can list (spec: E8, D2)."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
from openai import OpenAI

from tests.api.records.record_server import RecordServer, record_server
from tests.clients.scenes import HELLO
from toolgate.api.records.request_records import RequestRecorder
from toolgate.api.records.write_queue import WriteQueue, WriteQueueLimits
from toolgate.config.settings import RecordSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.request_ids import RequestIdGenerator
from toolgate.engine.run_limits import Price
from toolgate.storage.database import Database
from toolgate.storage.request_records import RequestStore
from toolgate.storage.stored_requests import RequestFilter, RequestPage
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import EndedRequests, RequestRecord

ASK: Any = [{"role": "user", "content": "a very private question"}]
ANSWER = "a very private answer"


@pytest.fixture(scope="module")
def server() -> Iterator[RecordServer]:
    with record_server() as served:
        yield served


def ask(server: RecordServer, model: str = "openai_chat", who: str = "ann", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {who}-key"}
    body = {"model": model, "messages": ASK, **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def newest(server: RecordServer, who: str = "ann", **filters: str) -> dict[str, Any]:
    return server.listed(f"/v1/requests?{httpx.QueryParams(filters)}", who)[0]


def test_a_request_is_recorded_with_all_that_is_known_of_it_but_its_content(server: RecordServer) -> None:
    server.play(ANSWER)
    answered = ask(server, "anthropic", stream=True)
    record = newest(server)
    assert record["id"] == answered.headers["x-request-id"]
    assert server.ask(f"/v1/requests/{record['id']}") == (200, record)
    assert {name: record[name] for name in ("object", "key", "method", "path", "dialect", "upstream")} == {
        "object": "request",
        "key": "ann",
        "method": "POST",
        "path": "/v1/chat/completions",
        "dialect": "openai_chat",
        "upstream": "anthropic",
    }
    assert (record["upstream_dialect"], record["model"], record["stream"]) == ("anthropic", "anthropic", True)
    assert (record["status"], record["finish_reason"], record["code"], record["error"]) == (200, "stop", None, None)
    assert record["input_tokens"] > 0
    assert 0 < record["first_token_ms"] <= record["total_ms"]
    assert "private" not in str(record)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"model": "nothing", "messages": ASK}, {}, 404),
        ({"model": "openai_chat"}, {}, 400),
        ({"model": "openai_chat", "messages": ASK}, {"authorization": "Bearer wrong"}, 401),
    ],
)
def test_a_refused_request_is_recorded_with_its_reason(
    server: RecordServer, body: Any, headers: dict[str, str], status: int
) -> None:
    key = {"authorization": "Bearer ann-key", **headers}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=key)
    assert refused.status_code == status
    record = server.ask(f"/v1/requests/{refused.headers['x-request-id']}", who="eve")[1]
    assert (record["status"], record["code"]) == (status, refused.json()["error"]["code"])
    assert record["key"] == (None if status == 401 else "ann")
    assert record["error"]


def test_the_id_of_a_request_begins_with_its_time_so_that_databases_store_ids_in_order(server: RecordServer) -> None:
    server.play(HELLO)
    earliest = RequestIdGenerator().new_id(time.time())[:8]
    id = ask(server).headers["x-request-id"]
    assert earliest <= id[:8] <= RequestIdGenerator().new_id(time.time())[:8]


def test_a_failed_upstream_is_recorded_as_an_error(server: RecordServer) -> None:
    server.play(UpstreamUnavailable("out of order"))
    assert ask(server).status_code == 502
    assert newest(server, status="error")["status"] == 502
    assert newest(server, status="5xx")["status"] == 502
    assert newest(server, status="502")["status"] == 502
    assert all(one["status"] < 500 for one in server.listed("/v1/requests?status=4xx"))


def test_health_checks_metrics_and_reads_that_succeed_are_not_recorded(server: RecordServer) -> None:
    server.play(HELLO)
    id = ask(server).headers["x-request-id"]
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer eve-key"}) as client:
        for path in ("/", "/healthz", "/metrics", "/v1/requests", "/v1/usage", "/v1/models", "/api/tags"):
            assert client.get(path).status_code == 200
        assert newest(server, "eve")["id"] == id
        assert client.get("/v1/requests?limit=1000").status_code == 400
        assert newest(server, "eve")["path"] == "/v1/requests", "a read that failed is recorded"


def test_a_key_sees_its_own_requests_and_an_admin_those_of_all_or_of_one(server: RecordServer) -> None:
    server.play(HELLO, HELLO)
    mine, theirs = ask(server).headers["x-request-id"], ask(server, who="bob").headers["x-request-id"]
    assert {one["key"] for one in server.listed("/v1/requests?key=bob")} == {"ann"}
    assert {one["key"] for one in server.listed("/v1/requests?key=bob", "eve")} == {"bob"}
    assert {mine, theirs} <= {one["id"] for one in server.listed("/v1/requests?limit=100", "eve")}
    assert server.ask(f"/v1/requests/{theirs}")[0] == 404
    assert server.ask(f"/v1/requests?after={theirs}")[0] == 400
    assert server.ask(f"/v1/requests/{theirs}", who="eve")[0] == 200


def test_pages_lead_through_all_requests_in_both_directions(server: RecordServer) -> None:
    server.play(*[HELLO] * 5)
    ids = [ask(server, "ollama", who="bob").headers["x-request-id"] for _ in range(5)][::-1]
    first = server.ask("/v1/requests?limit=2&model=ollama", who="bob")[1]
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:2], True)
    second = server.ask(f"/v1/requests?limit=10&model=ollama&after={first['last_id']}", who="bob")[1]
    assert ([one["id"] for one in second["data"]], second["has_more"]) == (ids[2:], False)
    back = server.ask(f"/v1/requests?limit=3&model=ollama&before={ids[4]}", who="bob")[1]
    assert ([one["id"] for one in back["data"]], back["has_more"]) == (ids[1:4], True)


def test_the_requests_of_a_busy_moment_are_listed_and_found_like_others(server: RecordServer) -> None:
    """They are stored in batches."""
    server.play(*[HELLO] * 60)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: ask(server, "anthropic", who="bob"), range(60))
        ids = {one.headers["x-request-id"] for one in answers}
    assert len(ids) == 60
    found: list[dict[str, Any]] = []
    cursor = ""
    while len(found) < 60:
        page = server.ask(f"/v1/requests?limit=7&model=anthropic{cursor}", who="bob")[1]
        found += page["data"]
        cursor = f"&after={page['last_id']}"
    assert {one["id"] for one in found[:60]} == ids
    times = [(one["created"], one["id"]) for one in found]
    assert times == sorted(times, reverse=True)
    for one in found[:60:20]:
        assert server.ask(f"/v1/requests/{one['id']}", who="bob") == (200, one)
        assert server.ask(f"/v1/requests/{one['id']}", who="ann")[0] == 404


def test_the_record_of_a_refused_count_names_no_model_that_does_not_exist(server: RecordServer) -> None:
    headers = {"authorization": "Bearer ann-key"}
    body = {"model": "m" * 100_000, "messages": ASK}
    refused = httpx.post(f"{server.url}/v1/messages/count_tokens", json=body, headers=headers, timeout=30)
    assert refused.status_code == 404
    status, record = server.ask(f"/v1/requests/{refused.headers['x-request-id']}")
    assert (status, record["model"]) == (200, None)


def test_requests_are_found_by_a_part_of_the_model_the_error_or_by_the_id(server: RecordServer) -> None:
    server.play(HELLO)
    id = ask(server, "openai_responses").headers["x-request-id"]
    refused = ask(server, "100%_wrong").headers["x-request-id"]
    assert newest(server, q="RESPONSES")["id"] == id
    assert [one["id"] for one in server.listed("/v1/requests?q=100%25_w")] == [refused]
    assert [one["id"] for one in server.listed(f"/v1/requests?q={id}")] == [id]
    assert server.listed("/v1/requests?q=100x_w") == []


def test_requests_are_found_by_time_and_dialect(server: RecordServer) -> None:
    server.play(HELLO, HELLO)
    first, second = [server.ask(f"/v1/requests/{ask(server).headers['x-request-id']}")[1] for _ in range(2)]
    since = server.listed(f"/v1/requests?since={second['created']}&dialect=openai_chat")
    assert second["id"] in {one["id"] for one in since}
    assert first["id"] not in {one["id"] for one in since}
    assert first["id"] in {one["id"] for one in server.listed(f"/v1/requests?limit=100&until={first['created']}")}
    assert server.listed("/v1/requests?until=2020-01-31") == []
    assert server.listed("/v1/requests?dialect=anthropic&since=2020-01-31T10:00") == []


@pytest.mark.parametrize("query", ["status=blue", "status=6xx", "since=yesterday", "until=-1", "since=nan", "limit=0"])
def test_a_malformed_filter_is_refused(server: RecordServer, query: str) -> None:
    status, body = server.ask(f"/v1/requests?{query}")
    assert (status, body["error"]["param"]) == (400, query.partition("=")[0])


def test_a_background_response_has_one_record_with_what_its_run_used(server: RecordServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="ann-key", max_retries=0) as client:
        server.play(HELLO)
        events = list(client.responses.create(model="openai_chat", input="Hi", background=True, stream=True))
    assert events[-1].type == "response.completed"
    run = events[-1].response.id
    (record,) = [one for one in server.listed("/v1/requests?limit=100") if one["run"] == run]
    assert (record["status"], record["upstream"], record["dialect"]) == (200, "openai_chat", "openai_responses")
    assert record["input_tokens"] > 0
    assert record["total_ms"] >= record["first_token_ms"] > 0


def test_no_secret_of_a_path_is_recorded(server: RecordServer) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 5
    refused = httpx.post(f"{server.url}/v1/responses/{secret}/cancel", headers={"authorization": "Bearer ann-key"})
    record = server.ask(f"/v1/requests/{refused.headers['x-request-id']}")[1]
    assert record["path"].startswith("/v1/responses/sk-")
    assert secret not in str(record)


def test_no_secret_of_an_error_is_recorded(server: RecordServer) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 5
    server.play(UpstreamUnavailable(f"Incorrect API key provided: {secret}"))
    assert ask(server).status_code == 502
    record = newest(server, status="error")
    assert secret not in str(record)
    assert "API key" in record["error"]


def test_requests_are_not_recorded_where_that_is_turned_off() -> None:
    with record_server(records=RecordSettings(requests=0)) as server:
        server.play(HELLO)
        ask(server)
        assert server.listed("/v1/requests", "eve") == []
        assert server.ask("/v1/status")[1]["records"] == {"requests_days": 0}


async def test_strangers_cannot_fill_the_database() -> None:
    database, metrics = Database(None), Metrics()
    store, writer = RequestStore(database), WriteQueue(database, Logger("error"), metrics)
    ended = EndedRequests()
    RequestRecorder(store, writer, str, ended, lambda: 0.0, on=True, price_of=lambda name: Price(), dialects={})
    for number in range(80):
        ended.add(RequestRecord(f"r{number}", "GET", "/v1/models", status=401))
        ended.add(RequestRecord(f"k{number}", "POST", "/v1/messages", caller="ann"))
        ended.add(RequestRecord(f"h{number}", "GET", "/healthz", endpoint="/healthz"))
    ended.pass_on()
    await writer.flush()
    assert len((await listed(store, "")).requests) == 50
    assert len((await listed(store, "ann")).requests) == 80
    assert b'toolgate_records_lost_total{kind="request"} 30' in metrics.render()
    await database.aclose()


async def test_records_that_wait_to_be_written_hold_no_more_of_long_texts_than_is_stored() -> None:
    database, metrics = Database(None), Metrics()
    store, writer = RequestStore(database), WriteQueue(database, Logger("error"), metrics)
    ended = EndedRequests()
    RequestRecorder(store, writer, str, ended, on=True, price_of=lambda name: Price(), dialects={})

    def long_request(number: int) -> RequestRecord:
        names = [f"{number}-{one}-" + "x" * 1000 for one in range(100)]
        record = RequestRecord(
            f"r{number}", "POST", f"/v1/{number}/" + "x" * 100_000, caller="ann", error="x" * 100_000
        )
        record.tools, record.warnings = names, tuple(names)
        return record

    tracemalloc.start()
    try:
        for number in range(50):
            ended.add(long_request(number))
            ended.pass_on()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50 * 100_000
    await writer.flush()
    stored = (await listed(store, "ann")).requests
    assert [len(one.path) for one in stored] == [200] * 50
    assert [len(one.error or "") for one in stored] == [500] * 50
    assert [len(msgspec.json.decode(one.tools or "")) for one in stored] == [50] * 50
    await database.aclose()


async def test_texts_that_others_decide_are_redacted_off_the_event_loop() -> None:
    database, threads = Database(None), set[str]()
    store, writer = RequestStore(database), WriteQueue(database, Logger("error"), Metrics())

    def redact(text: str) -> str:
        threads.add(threading.current_thread().name)
        return text.replace("secret", "***")

    ended = EndedRequests()
    RequestRecorder(store, writer, redact, ended, on=True, price_of=lambda name: Price(), dialects={})
    for number in range(20):
        ended.add(RequestRecord(f"p{number}", "POST", "/v1/messages", endpoint="/v1/messages", caller="ann"))
        ended.add(RequestRecord(f"e{number}", "POST", "/secret", caller="ann", error="secret", warnings=("secret",)))
    ended.pass_on()
    await writer.flush()
    stored = (await listed(store, "ann")).requests
    assert len(stored) == 40
    assert "secret" not in str(stored)
    assert threads
    assert threading.current_thread().name not in threads
    await database.aclose()


async def test_long_texts_of_records_count_for_the_limit_of_the_queue() -> None:
    database, metrics = Database(None), Metrics()
    store = RequestStore(database)
    writer = WriteQueue(database, Logger("error"), metrics, WriteQueueLimits(most_bytes=300_000))
    ended = EndedRequests()
    RequestRecorder(store, writer, str, ended, on=True, price_of=lambda name: Price(), dialects={})
    for number in range(20):
        ended.add(RequestRecord(f"r{number}", "POST", caller="ann", warnings=("x" * 500,) * 50))
        ended.pass_on()
    await writer.flush()
    assert len((await listed(store, "ann")).requests) == 11
    assert b'toolgate_records_lost_total{kind="request"} 9' in metrics.render()
    await database.aclose()


async def listed(store: RequestStore, owner: str) -> RequestPage:
    page = await store.page(RequestFilter(owner), None, 1000)
    assert page is not None
    return page
