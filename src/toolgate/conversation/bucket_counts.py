"""Count numbers in the buckets of a histogram."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


def count_in_buckets(values: Sequence[float], bounds: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield each bucket that has values, and how many; both sequences are in ascending order.

    A bucket contains its upper bound; the last one has no bound. Takes time by the number of buckets, not of values.
    """
    start = 0
    while start < len(values):
        bucket = bisect_left(bounds, values[start])
        end = bisect_right(values, bounds[bucket], start) if bucket < len(bounds) else len(values)
        yield bucket, end - start
        start = end
