"""Ids of requests sort by time."""

import re

from toolgate.http.request_ids import RequestIds


def test_ids_of_requests_are_random_and_in_the_order_of_time() -> None:
    seconds = [1.5, 9.0, 10.0, 36.0, 62.0, 3_843.9, 3_844.0, 1_763_390_000.0, 4_000_000_000.0]
    made = [RequestIds(lambda now=now: now).new_id(20) for now in seconds for _ in range(3)]  # type: ignore[misc]
    assert [id[:6] for id in made] == sorted(id[:6] for id in made)
    assert len({id[:6] for id in made}) == len(seconds)
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[a-zA-Z0-9]{20}", id) for id in made)
