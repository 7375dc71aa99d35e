"""Ids of requests sort by time, and say it."""

import re

import pytest

from toolgate.conversation.request_ids import RequestIdGenerator, second_of


def test_ids_of_requests_are_random_and_in_the_order_of_time() -> None:
    early, late = [1.5, 9.0, 10.0, 36.0, 62.0, 3_843.9, 3_844.0], [1_763_390_000.0, 4_000_000_000.0]
    within = [1_763_390_001 + part / 3844 + 1e-6 for part in (0, 1, 61, 62, 3_843)]
    times = sorted([*early, *late, *within])
    made = [RequestIdGenerator().new_id(now) for now in times for _ in range(3)]
    assert [id[:8] for id in made] == sorted(id[:8] for id in made)
    assert len({id[:8] for id in made}) == len(times)
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[a-zA-Z0-9]{20}", id) for id in made)
    assert [second_of(id) for id in made] == [int(now) for now in times for _ in range(3)]


@pytest.mark.parametrize("text", ["", "short", "x" * 21, "1tYQpC-4567890abcdef", "é" * 20, "²" * 20])
def test_what_is_no_id_of_a_request_has_no_time(text: str) -> None:
    assert second_of(text) is None
