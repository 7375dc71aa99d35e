"""Records of requests are found by any filter while a bounded number of rows is looked at (spec: E8, D1)."""

import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from toolgate.conversation.request_ids import RequestIdGenerator
from toolgate.storage import retention
from toolgate.storage.database import Database
from toolgate.storage.keyset_page import TimeRange
from toolgate.storage.request_batches import columns_of, unpack
from toolgate.storage.request_records import RequestStore
from toolgate.storage.stored_requests import RequestFilter, StatusRange, StoredRequest

NOW = 1_800_000_000.0
ONE = StoredRequest(
    id="",
    owner="ann",
    created=NOW,
    method="POST",
    path="/v1/messages",
    dialect="anthropic",
    upstream="box",
    upstream_dialect="ollama",
    model="m",
    stream=0,
    status=200,
    finish_reason="stop",
    code=None,
    error=None,
    input_tokens=1,
    output_tokens=2,
    cached_tokens=0,
    reasoning_tokens=0,
    estimated=0,
    cost=0.5,
    first_token_ms=3.0,
    total_ms=4.0,
    tools='["clock"]',
)


def request(number: int, **fields: Any) -> StoredRequest:
    return replace(ONE, **{"id": f"r{number:06}", "created": NOW + number, **fields})


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


async def put(database: Database, *rows: StoredRequest, background: tuple[StoredRequest, ...] = ()) -> RequestStore:
    store = RequestStore(database)
    for one in [*(store.adding(columns_of(rows)) if rows else ()), *store.replacing(background)]:
        await database.change(one.write)
    return store


async def ids(store: RequestStore, wanted: RequestFilter, after: str | None = None, **how: Any) -> list[str]:
    page = await store.page(wanted, after, how.pop("limit", 50), **how)
    assert page is not None
    return [one.id for one in page.requests]


async def test_a_stored_request_is_read_as_it_was_written(database: Database) -> None:
    store = await put(database, request(1))
    assert await store.find("r000001", "ann") == await store.find("r000001", None) == request(1)
    assert await store.find("r000001", "bob") is None


def slow_requests() -> list[StoredRequest]:
    """Two every second, of several owners and models: each is a row."""
    return [varied(number, NOW + number // 2) for number in range(120)]


def busy_requests() -> list[StoredRequest]:
    """Many at a time, some of them at the same: most are in batches, a few are rows in between."""
    chance = random.Random(5)
    times = [NOW + chance.choice((chance.uniform(0, 60), 7.25, 10.0)) for _ in range(900)]
    return [varied(number, created, run="run" * (number % 13 == 0)) for number, created in enumerate(times)]


def varied(number: int, created: float, **fields: Any) -> StoredRequest:
    return request(
        number,
        id=RequestIdGenerator().new_id(created),
        owner=("ann", "bob")[number % 2],
        model=("m", "n", "odd")[number % 3],
        status=(200, 200, 404, 503, 200)[number % 5],
        dialect=("ollama", "anthropic")[number % 7 > 3],
        error="It broke." if number % 11 == 0 else "",
        created=created,
        **fields,
    )


@pytest.mark.parametrize(("make", "batches"), [(slow_requests, False), (busy_requests, True)])
async def test_every_filter_and_every_pair_of_them_finds_the_same_as_a_search_through_all(
    database: Database, make: Callable[[], list[StoredRequest]], batches: bool
) -> None:
    rows = make()
    store = await put(database, *rows)
    packed = await database.read(lambda db: db.execute("SELECT coalesce(sum(requests), 0) FROM request_batches"))
    assert (packed.fetchone()[0] > len(rows) // 2) == batches
    filters: dict[str, tuple[Any, Callable[[StoredRequest], bool]]] = {
        "owner": ("ann", lambda one: one.owner == "ann"),
        "model": ("odd", lambda one: one.model == "odd"),
        "dialect": ("ollama", lambda one: one.dialect == "ollama"),
        "statuses": (StatusRange(400, 499), lambda one: one.status == 404),
        "text": ("BROKE", lambda one: bool(one.error)),
        "times": (TimeRange(NOW + 10, NOW + 40), lambda one: NOW + 10 <= one.created <= NOW + 40),
    }
    for first in filters:
        for second in filters:
            names = {first, second}
            wanted = RequestFilter(**{name: filters[name][0] for name in names})
            fitting = [one for one in rows if all(filters[name][1](one) for name in names)]
            newest = sorted(fitting, key=lambda one: one.place, reverse=True)
            for newest_first, most in ((True, 10_000), (False, 10_000), (True, 30), (False, 30)):
                found: list[StoredRequest] = []
                after = None
                while True:
                    page = await store.page(wanted, after, len(rows) // 9, newest_first=newest_first, rows=most)
                    assert page is not None
                    found += page.requests
                    if page.last is None:
                        break
                    after = page.last[1]
                assert found == (newest if newest_first else newest[::-1]), (names, newest_first, most)


async def test_every_request_of_a_batch_is_found_by_its_id_and_by_its_owner_alone(database: Database) -> None:
    rows = busy_requests()
    store = await put(database, *rows)
    for one in rows[::9]:
        assert await store.find(one.id, None) == await store.find(one.id, one.owner) == one
        assert await store.find(one.id, "eve") is None
    assert await store.find(RequestIdGenerator().new_id(NOW + 1), None) is None
    assert await store.page(RequestFilter(), RequestIdGenerator().new_id(NOW + 1), 5) is None


def test_a_batch_of_an_earlier_version_is_read() -> None:
    requests = [request(number) for number in range(12)]
    assert unpack(msgspec.msgpack.encode(requests)) == requests


@pytest.mark.parametrize("broken", [{"path": "\ud800"}, {"input_tokens": 2**70}])
async def test_of_requests_with_one_that_cannot_be_stored_the_others_are(
    database: Database, broken: dict[str, Any]
) -> None:
    rows = [request(number, created=NOW, **(broken if number == 5 else {})) for number in range(12)]
    [write] = RequestStore(database).adding(columns_of(rows))
    assert write.singly is not None
    failed = 0
    for one in write.singly():
        try:
            await database.change(one)
        except Exception:  # noqa: BLE001  # whatever the database raises
            failed += 1
    assert failed == 1
    assert len(await ids(RequestStore(database), RequestFilter())) == 11


async def test_a_batch_that_is_written_twice_is_stored_once(database: Database) -> None:
    """A transaction whose commit was not confirmed is run again."""
    rows = [varied(0, NOW + number / 100) for number in range(50)]
    store = await put(database, *rows)
    await put(database, *rows)
    assert await ids(store, RequestFilter(), newest_first=False) == [one.id for one in rows]


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        (StatusRange(400, 999), ["r000004", "r000003", "r000002"]),
        (StatusRange(400, 499), ["r000003", "r000002"]),
        (StatusRange(404, 404), ["r000003"]),
        (StatusRange(200, 200), ["r000001"]),
    ],
)
async def test_statuses_are_found_by_number_class_and_failure(
    database: Database, statuses: StatusRange, found: list[str]
) -> None:
    store = await put(database, *[request(n, status=s) for n, s in enumerate((200, 400, 404, 502), 1)])
    assert await ids(store, RequestFilter(statuses=statuses)) == found


async def test_a_rare_text_is_looked_for_in_so_many_rows_and_the_next_page_goes_on_from_there(
    database: Database,
) -> None:
    rows = [request(number) for number in range(50)]
    store = await put(database, replace(rows[0], error="rare"), *rows[1:])
    page = await store.page(RequestFilter(text="rare"), None, 5, rows=20)
    assert page is not None
    assert (page.requests, page.last) == ([], rows[30].place)
    page = await store.page(RequestFilter(text="rare"), rows[30].id, 5, rows=40)
    assert page is not None
    assert ([one.id for one in page.requests], page.last) == ([rows[0].id], None)
    page = await store.page(RequestFilter(text="nothing"), rows[5].id, 5, rows=20, newest_first=False)
    assert page is not None
    assert (page.requests, page.last) == ([], rows[25].place)


async def test_a_next_page_begins_behind_a_request_of_the_same_owner_though_another_index_has_fewer_rows(
    database: Database,
) -> None:
    rare = [request(number, owner="bob", model="rare") for number in range(1, 60)]
    own = [request(0, model="rare"), *[request(100 + number) for number in range(1000)]]
    store = await put(database, *rare, *own)
    found: list[StoredRequest] = []
    after = None
    while (page := await store.page(RequestFilter("ann", "rare"), after, 5, rows=50)) is not None:
        found += page.requests
        if page.last is None:
            break
        after = page.last[1]
        assert await store.find(after, "ann") is not None
    assert found == own[:1]


async def test_the_record_of_a_background_run_replaces_that_of_its_request_and_keeps_its_time(
    database: Database,
) -> None:
    asked = request(1, upstream="", input_tokens=0, total_ms=1.0, first_token_ms=None)
    ran = request(1, created=NOW + 3, run="resp_1", total_ms=500.0, first_token_ms=100.0)
    store = await put(database, asked, background=(ran,))
    await put(database, asked)
    found = await store.find("r000001", None)
    assert found == replace(ran, created=NOW + 1, total_ms=2500.0, first_token_ms=2100.0)


async def test_records_go_after_their_days_and_above_their_number(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_REQUESTS", 3)
    store = await put(database, *[request(-number * 86_400) for number in range(9)])
    job = retention.RetentionStore(database, clock=lambda: NOW)
    assert await job.sweep("requests", 5) == 6
    assert len(await ids(store, RequestFilter())) == 3
    assert await job.sweep("requests", 2) == 1
    assert await job.sweep("requests", 0) == 2


async def test_batches_go_after_their_days_and_above_their_number(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_REQUESTS", 45)
    days = [[varied(0, NOW - day * 86_400 - number / 10) for number in range(1, 21)] for day in range(4)]
    rows = [request(-day * 86_400 - 7, owner="ann") for day in range(4)]
    store = await put(database, *[one for day in days for one in day], *rows)
    job = retention.RetentionStore(database, clock=lambda: NOW)
    assert await job.sweep("requests", 30) == 42, "the oldest until no more than 45 are left"
    assert len(await ids(store, RequestFilter(), limit=100)) == 42
    assert await job.sweep("requests", 1) == 21
    early = retention.RetentionStore(database, clock=lambda: NOW - 1)
    assert [await early.sweep("requests", 0) for _ in range(2)] == [1, 0], "some of a batch are younger"
    assert [await job.sweep("requests", 0) for _ in range(2)] == [20, 0]


async def test_the_oldest_go_first_wherever_they_are_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_REQUESTS", 120)
    rows = [request(number) for number in range(1100)]
    busy = [varied(0, NOW + 2000 + number / 100) for number in range(100)]
    store = await put(database, *rows, *busy)
    job = retention.RetentionStore(database, clock=lambda: NOW)
    assert [await job.sweep("requests", 30) for _ in range(3)] == [1000, 80, 0]
    left = [*reversed(busy), *reversed(rows[1080:])]
    assert await ids(store, RequestFilter(), limit=1000) == [one.id for one in left]


async def test_the_records_of_an_owner_are_forgotten(database: Database) -> None:
    busy = [varied(number % 2, NOW - number / 100) for number in range(100)]
    store = await put(database, request(1), request(2, owner="bob"), *busy)
    assert await retention.RetentionStore(database).forget("ann") == {"request_records": 51}
    assert await ids(store, RequestFilter(), limit=1) == ["r000002"]
    assert len(await ids(store, RequestFilter(), limit=100)) == 51


async def test_a_search_for_repeated_letters_takes_no_longer_than_another() -> None:
    """Where text and error repeat one letter, comparing them at every place takes the product of their lengths."""
    database = Database("sqlite://")
    store = await put(database, *[request(number, error="a" * 500) for number in range(1000)])

    async def seconds(text: str) -> float:
        times = []
        for _ in range(3):
            before = await database.read(lambda db: time.thread_time())
            page = await store.page(RequestFilter(text=text), None, 10)
            assert page is not None
            assert page.requests == []
            times.append(await database.read(lambda db: time.thread_time()) - before)
        return min(times)

    assert await seconds("a" * 250 + "b") < 5 * await seconds("b" * 250)
    await database.aclose()
