"""What request records cost: `python -m bench.records [rows]`.

First the time that a request pays for its record, and the processor time of writing it behind the answer. Then the time of
a page of the list among so many records, a million unless told otherwise, for each filter, over SQLite and PostgreSQL: once
of requests that came so slowly that each is a row, and once so fast that they are stored in batches.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.durable import storages
from toolgate.api.records.request_records import RequestRecorder
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.events import Usage
from toolgate.conversation.request_ids import RequestIdGenerator
from toolgate.engine.run_limits import Price
from toolgate.storage.database import Database
from toolgate.storage.keyset_page import TimeRange
from toolgate.storage.request_batches import columns_of
from toolgate.storage.request_records import RequestStore
from toolgate.storage.stored_requests import FAILED, RequestFilter, StatusRange, StoredRequest
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import EndedRequests, RequestRecord

PAID_MICROSECONDS = 5.0
PAGE_MILLISECONDS = 50.0
_AT_ONCE = 20_000
_NOW = 1_800_000_000.0
_REPEATS = 9


class Cost(Struct, frozen=True):
    """Microseconds of one request: on the way of its answer, and of processor time behind it."""

    paid: float
    behind: float


async def record_cost(requests: int = 50_000) -> Cost:
    """Record so many requests, as telemetry does when they end, and write them to a database in memory."""
    database = Database(None)
    writer = WriteQueue(database, Logger("error"), Metrics())
    ended = EndedRequests()
    RequestRecorder(
        RequestStore(database),
        writer,
        lambda text: text,
        ended,
        on=True,
        price_of=lambda name: Price(1.0, 2.0),
        dialects={"box": "ollama"},
    )
    records = [_record(number) for number in range(requests)]
    paid, used = 0.0, time.process_time()
    for start in range(0, requests, 500):
        began = time.perf_counter()
        for record in records[start : start + 500]:
            ended.add(record)
        paid += time.perf_counter() - began
        ended.pass_on()
        await writer.flush(60)
    used = time.process_time() - used - paid
    await database.aclose()
    return Cost(paid / requests * 1e6, used / requests * 1e6)


def _record(number: int) -> RequestRecord:
    record = RequestRecord(f"request{number:013}", "POST", "/v1/chat/completions", caller="ann", model="gpt")
    record.dialect, record.upstream, record.usage = "openai_chat", "box", Usage(120, 60)
    record.first_event, record.seconds, record.finish = record.started + 0.1, 0.3, "stop"
    return record


FILTERS: dict[str, RequestFilter] = {
    "none": RequestFilter(),
    "key": RequestFilter(owner="key7"),
    "key with few": RequestFilter(owner="rare"),
    "model": RequestFilter(model="model3"),
    "model with few": RequestFilter(model="rare"),
    "status 200": RequestFilter(statuses=StatusRange(200, 200)),
    "status 4xx": RequestFilter(statuses=StatusRange(400, 499)),
    "status 418, rare": RequestFilter(statuses=StatusRange(418, 418)),
    "status error": RequestFilter(statuses=StatusRange(*FAILED)),
    "key and error": RequestFilter(owner="key7", statuses=StatusRange(*FAILED)),
    "key and model": RequestFilter(owner="key7", model="model3"),
    "key and rare model": RequestFilter(owner="key7", model="rare"),
    "dialect": RequestFilter(dialect="ollama"),
    "dialect that is not there": RequestFilter(dialect="nothing"),
    "since and until": RequestFilter(times=TimeRange(_NOW + 100.0, _NOW + 200.0)),
    "text": RequestFilter(text="model3"),
    "text that is not there": RequestFilter(text="nowhere to be found"),
}


def _row(number: int, chance: random.Random, ids: RequestIdGenerator, per_second: int) -> StoredRequest:
    created = _NOW + number / per_second
    failed = chance.random() < 0.02
    return StoredRequest(
        id=ids.new_id(created),
        owner="rare" if number % 100_000 == 0 else f"key{number % 10}",
        created=created,
        method="POST",
        path="/v1/chat/completions",
        dialect=("openai_chat", "anthropic", "openai_responses", "ollama")[number % 4],
        upstream="box",
        upstream_dialect="openai_chat",
        model="rare" if number % 200_000 == 1 else f"model{number % 7}",
        stream=number % 2,
        status=418 if number % 250_000 == 0 else (429 if number % 3 else 502) if failed else 200,
        finish_reason=None if failed else "stop",
        code="upstream_error" if failed else None,
        error="The upstream did not answer in time." if failed else None,
        input_tokens=120,
        output_tokens=60,
        cached_tokens=0,
        reasoning_tokens=0,
        estimated=0,
        cost=0.0012,
        first_token_ms=210.4,
        total_ms=1530.0,
    )


async def fill(store: RequestStore, database: Database, rows: int, per_second: int) -> None:
    """Store so many records of requests that came so fast."""
    chance, ids = random.Random(1), RequestIdGenerator()
    for start in range(0, rows, _AT_ONCE):
        some = [_row(number, chance, ids, per_second) for number in range(start, min(rows, start + _AT_ONCE))]
        for one in store.adding(columns_of(some)):
            await database.change(one.write)


async def timed(read: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return the milliseconds that a read takes: at best, which other programs disturb least, and in the middle."""
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        await read()
        times.append((time.perf_counter() - began) * 1000)
    return min(times), sorted(times)[len(times) // 2]


async def pages(url: str, rows: int, per_second: int) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of a page for each filter."""
    database = Database(url, timeout=120.0)
    store = RequestStore(database)
    await fill(store, database, rows, per_second)
    if not url.startswith("sqlite"):
        for table in ("request_records", "request_batches"):
            await database.change(lambda db, table=table: db.execute(f"ANALYZE {table}"))  # type: ignore[misc]
    times = {name: await timed(lambda one=one: store.page(one, None, 100)) for name, one in FILTERS.items()}  # type: ignore[misc]
    first = await store.page(RequestFilter(), None, 100)
    assert first is not None
    assert first.last is not None
    last = first.last[1]
    times["the next page"] = await timed(lambda: store.page(RequestFilter(), last, 100))
    await database.aclose()
    return times


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    console = Console()
    cost = asyncio.run(record_cost())
    paid = f"{cost.paid:.2f} µs for its request (at most {PAID_MICROSECONDS:g})"
    console.print(f"a record: {paid}, {cost.behind:.1f} µs behind it")
    for per_second in (50, 1000):
        title = f"a page of 100 among {rows:,} records, {per_second} a second, ms (at most {PAGE_MILLISECONDS:g})"
        table = Table("filter", title=title)
        with storages() as urls:
            found = {engine: asyncio.run(pages(url, rows, per_second)) for engine, url in urls.items()}
        for engine in found:
            table.add_column(f"{engine}, best", justify="right")
            table.add_column("median", justify="right")
        for name in [*FILTERS, "the next page"]:
            table.add_row(name, *[f"{one:.1f}" for times in found.values() for one in times[name]])
        console.print(table)


if __name__ == "__main__":
    main()
