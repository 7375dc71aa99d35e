"""Store how long requests took, by hour, key and model: counts in buckets, of which percentiles are computed.

A bucket is wider than the one before by an eighth power of two, so that a percentile is right to about four percent,
however many requests there were.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import log2
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.bucket_counts import count_in_buckets
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.responses import Write

LatencyKind: TypeAlias = Literal["total", "first"]
LatencyBy: TypeAlias = Literal["key", "model", "hour"]
# The columns by which latencies may be grouped.
LATENCY_BY: tuple[LatencyBy, ...] = ("hour", "key", "model")

# The numbers of buckets are stored: changing these two would give stored counts another meaning. Bucket 0 is one
# millisecond, 8 is two, 16 is four; the first is a tenth of a millisecond.
_PER_DOUBLING = 8
_FIRST = round(_PER_DOUBLING * log2(0.1))
# The seconds between two buckets, up to twelve days. A look-up takes less time than a logarithm.
_EDGES = [2 ** ((_FIRST + number + 0.5) / _PER_DOUBLING) / 1000 for number in range(30 * _PER_DOUBLING)]
_ADD = """
INSERT INTO latency_counts (hour, key, model, kind, bucket, requests) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (hour, key, model, kind, bucket) DO UPDATE SET requests = latency_counts.requests + excluded.requests
"""


class LatencyFilter(Struct, frozen=True):
    """Which latencies are read; None means any. Hours are both included."""

    key: str | None = None
    model: str | None = None
    since: str | None = None
    until: str | None = None


class LatencyCounts(Struct, frozen=True):
    """The counts of one group, by the bucket of their time, for whole answers and for first tokens."""

    names: Mapping[str, str]
    total: Mapping[int, int]
    first: Mapping[int, int]


class LatencyStore:
    """Adds up how long requests took."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(self, counts: Mapping[tuple[str, str, str, LatencyKind, int], int]) -> Write:
        """Return the write that adds these counts, by hour, key, model, kind and bucket."""
        rows = [(*place, count) for place, count in counts.items()]
        return lambda db: db.executemany(_ADD, rows)

    async def groups(self, by: Sequence[LatencyBy], wanted: LatencyFilter) -> list[LatencyCounts]:
        """Return the counts of these groups, in their order."""
        names = [name for name in LATENCY_BY if name in by]
        conditions = [("key =", wanted.key), ("model =", wanted.model), ("hour >=", wanted.since)]
        conditions = [(text, value) for text, value in (*conditions, ("hour <=", wanted.until)) if value is not None]
        where = " AND ".join([f"{text} ?" for text, _ in conditions]) or "1 = 1"
        columns = ", ".join([*names, "kind", "bucket"])
        text = f"SELECT {columns}, sum(requests) FROM latency_counts WHERE {where} GROUP BY {columns}"  # noqa: S608 - names of columns
        values = tuple([value for _, value in conditions])

        def read(db: SqlConnection) -> list[LatencyCounts]:
            groups: defaultdict[tuple[str, ...], dict[str, Counter[int]]] = defaultdict(
                lambda: {"total": Counter(), "first": Counter()}
            )
            for *group, kind, number, requests in db.execute(text, values).fetchall():
                groups[tuple(group)][kind][int(number)] += int(requests)
            return [
                LatencyCounts(dict(zip(names, group, strict=True)), groups[group]["total"], groups[group]["first"])
                for group in sorted(groups)
            ]

        return await self._database.read(read)


def count_by_bucket(durations: Sequence[float]) -> Counter[int]:
    """Return how many durations, in seconds and in ascending order, are in each bucket."""
    return Counter({_FIRST + number: count for number, count in count_in_buckets(durations, _EDGES)})


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the milliseconds within which this share of the requests was done; None if there were none."""
    left = share * sum(counts.values())
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return float(f"{2 ** (number / _PER_DOUBLING):.3g}")
    return None
