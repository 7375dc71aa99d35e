"""Percentiles come from counts in buckets, right to a few percent however many requests there were (spec: E8)."""

import random
from collections.abc import AsyncIterator

import pytest

from toolgate.storage.database import Database
from toolgate.storage.latencies import LatencyFilter, LatencyStore, count_by_bucket, percentile
from toolgate.storage.retention import RetentionStore


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_percentile_is_right_to_five_percent(share: float) -> None:
    times = sorted([random.Random(7).lognormvariate(5, 2) for _ in range(5000)])
    counts = count_by_bucket([one / 1000 for one in times])
    found = percentile(counts, share)
    assert found is not None
    assert abs(found / times[int(share * len(times))] - 1) < 0.05
    assert len(counts) < 200


def test_there_may_be_no_request_and_very_short_ones() -> None:
    assert percentile({}, 0.5) is None
    assert percentile(count_by_bucket([0.0]), 0.5) == pytest.approx(0.1, rel=0.05)


async def test_counts_are_added_up_and_read_by_group_and_hour(database: Database) -> None:
    store = LatencyStore(database)
    for hour in ("2026-11-17T08", "2026-11-17T09"):
        for key in ("ann", "bob"):
            await database.change(store.adding({(hour, key, "m", "total", 3): 2, (hour, key, "m", "first", 1): 1}))
    await database.change(store.adding({("2026-11-17T09", "ann", "m", "total", 3): 5}))
    (everything,) = await store.groups([], LatencyFilter())
    assert (everything.names, everything.total, everything.first) == ({}, {3: 13}, {1: 4})
    groups = await store.groups(["key", "hour"], LatencyFilter(since="2026-11-17T09", key="ann"))
    assert [(one.names, one.total) for one in groups] == [({"hour": "2026-11-17T09", "key": "ann"}, {3: 7})]
    assert await store.groups(["model"], LatencyFilter(model="n")) == []
    assert await store.groups(["model"], LatencyFilter(until="2026-11-17T07")) == []
    job = RetentionStore(database, clock=lambda: 1_794_906_000.0 + 86_400)  # a day after 2026-11-17T09:00
    assert await job.sweep("hours", 1) == 4
    assert await job.forget("ann") == {"latency_counts": 2}
