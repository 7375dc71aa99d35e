"""Numbers are counted in the buckets of a histogram."""

from bisect import bisect_left
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.bucket_counts import count_in_buckets

BOUNDS = (0.5, 1.0, 2.0, 5.0)


@given(st.lists(st.sampled_from((*BOUNDS, 0.0, 0.1, 0.7, 1.5, 3.0, 9.0, -1.0))))
def test_counts_are_those_of_each_value_looked_up_by_itself(values: list[float]) -> None:
    counted = dict(count_in_buckets(sorted(values), BOUNDS))
    assert counted == Counter(bisect_left(BOUNDS, one) for one in values)
