"""What keys have used, on the disk (spec: D1, E5)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from toolgate.storage.database import Database
from toolgate.storage.usage import UsagePeriodTotal, UsageStore


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


async def test_sums_are_reported_by_what_is_asked(database: Database) -> None:
    store = UsageStore(database)
    rows = [
        UsagePeriodTotal("2026-11-01", "ann", "gpt", 1, 10, 5, 4, 1, 0, 0.5),
        UsagePeriodTotal("2026-11-02", "ann", "gpt", 2, 20, 6, 0, 0, 1, 0.25),
        UsagePeriodTotal("2026-11-02", "bob", "claude", 3, 30, 7, 0, 0, 0, 0.125),
    ]
    await database.change(store.adding(rows))
    await database.change(store.adding(rows[:1]))
    [ann, bob] = await store.sums(["key"])
    assert ann == {
        "key": "ann",
        "requests": 4,
        "input_tokens": 40,
        "output_tokens": 16,
        "cached_tokens": 8,
        "reasoning_tokens": 2,
        "estimated": 1,
        "cost": 1.25,
        "errors": 0,
    }
    assert (bob["key"], bob["requests"]) == ("bob", 3)
    assert [(row["day"], row["requests"]) for row in await store.sums(["day"])] == [
        ("2026-11-01", 2),
        ("2026-11-02", 5),
    ]
    assert [row["model"] for row in await store.sums(["model"], key="bob")] == ["claude"]
    assert [row["requests"] for row in await store.sums([])] == [7]
    assert [row["requests"] for row in await store.sums([], since="2026-11-02", until="2026-11-02")] == [5]
    assert await store.sums(["key"], since="2026-12-01") == []
    assert await store.sums([], since="2026-12-01") == []


async def test_many_nodes_add_to_one_sum(storage_url: str) -> None:
    databases = [Database(storage_url) for _ in range(3)]
    stores = [UsageStore(database) for database in databases]
    used = UsagePeriodTotal("2026-11-01", "ann", "gpt", 1, 2, 3, cost=0.5)
    await asyncio.gather(*[databases[number % 3].change(stores[number % 3].adding([used])) for number in range(12)])
    [row] = await stores[0].sums(["key"])
    assert (row["requests"], row["input_tokens"], row["output_tokens"], row["cost"]) == (12, 24, 36, 6.0)
    for database in databases:
        await database.aclose()
