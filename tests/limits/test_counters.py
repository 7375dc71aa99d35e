"""Counting in one process: never more than the limit a minute, nothing given back twice (spec: E5; fault: M3, M4)."""

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.limits import KeyLimits, LocalCounters, RateLimitResult
from toolgate.limits.sliding_window import SLOT, SLOTS, SlidingWindow

MINUTE = 60 * 1_000_000_000
GAP = st.one_of(
    st.integers(0, 20_000_000_000), st.integers(0, 2 * SLOT), st.integers(MINUTE - 2 * SLOT, MINUTE + 2 * SLOT)
)
GAPS = st.lists(GAP, max_size=60)


class Clock:
    def __init__(self) -> None:
        self.now = 7_123_456_789

    def __call__(self) -> int:
        return self.now


def most_in_a_minute(grants: list[tuple[int, int]]) -> int:
    """The most that any minute holds: one that ends with a grant is as full as any."""
    inside: deque[tuple[int, int]] = deque()
    total = most = 0
    for at, amount in grants:
        inside.append((at, amount))
        total += amount
        while inside[0][0] <= at - MINUTE:
            total -= inside.popleft()[1]
        most = max(most, total)
    return most


def reserve(counters: LocalCounters, limits: KeyLimits, tokens: int = 0, key: str = "ann") -> RateLimitResult:
    """Counting here never waits, so no loop is needed."""
    try:
        counters.reserve(key, limits, tokens).send(None)
    except StopIteration as done:
        taken: RateLimitResult = done.value
        return taken
    raise AssertionError("it waited")


@given(GAPS, st.integers(1, 7))
def test_no_minute_holds_more_requests_than_the_limit(gaps: list[int], limit: int) -> None:
    """(fault: M3)"""
    clock = Clock()
    counters, limits, grants = LocalCounters(clock), KeyLimits(requests_per_minute=limit), []
    for gap in gaps:
        clock.now += gap
        if reserve(counters, limits).reservation is not None:
            grants.append((clock.now, 1))
    assert most_in_a_minute(grants) <= limit
    assert len(grants) >= min(limit, len(gaps))


@given(st.lists(st.tuples(GAP, st.integers(0, 150)), max_size=60))
def test_no_minute_holds_more_reserved_tokens_than_the_limit(arrivals: list[tuple[int, int]]) -> None:
    """(fault: M3)"""
    clock = Clock()
    counters, limits, grants = LocalCounters(clock), KeyLimits(tokens_per_minute=100), []
    for gap, tokens in arrivals:
        clock.now += gap
        taken = reserve(counters, limits, tokens)
        if taken.reservation is not None:
            grants.append((clock.now, taken.reservation.tokens))
    assert most_in_a_minute(grants) <= 100


@given(GAPS, st.integers(1, 5))
def test_a_retry_after_the_given_time_is_admitted(gaps: list[int], limit: int) -> None:
    clock = Clock()
    counters, limits = LocalCounters(clock), KeyLimits(requests_per_minute=limit)
    for gap in gaps:
        clock.now += gap
        taken = reserve(counters, limits)
        if taken.reservation is None:
            assert taken.refused == "requests"
            assert 0 < taken.retry_after <= 60.1
            clock.now += round(taken.retry_after * 1e9)
            assert reserve(counters, limits).reservation is not None


def test_what_is_refused_late_is_less_than_a_hundredth() -> None:
    """(fault: M3)"""
    clock = Clock()
    counters, limits, granted = LocalCounters(clock), KeyLimits(requests_per_minute=100), 0
    for _ in range(10 * 600):  # ten minutes at 600 a minute
        clock.now += SLOT
        granted += reserve(counters, limits).reservation is not None
    assert 990 <= granted <= 1000


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(0, 40_000_000_000)),
            st.tuples(st.just("take"), st.integers(0, 120)),
            st.tuples(st.just("settle"), st.integers(0, 300)),
            st.tuples(st.just("again"), st.integers(0, 300)),
        ),
        max_size=80,
    )
)
def test_reservations_never_go_negative_nor_come_back_twice(steps: list[tuple[str, int]]) -> None:
    """(fault: M4)"""
    clock = Clock()
    counters, limits = LocalCounters(clock), KeyLimits(tokens_per_minute=100, concurrency=4)
    running, over = [], []
    for what, amount in steps:
        if what == "wait":
            clock.now += amount
        elif what == "take":
            hold = reserve(counters, limits, amount).reservation
            running += [hold] if hold else []
        elif what == "settle" and running:
            over.append(running.pop(0))
            counters.settle(over[-1], amount)
        elif what == "again" and over:
            before = counters.running("ann"), counters._use_of("ann").tokens.used
            counters.settle(over[0], amount)
            assert (counters.running("ann"), counters._use_of("ann").tokens.used) == before
        assert counters.running("ann") == len(running) <= 4
        assert counters._use_of("ann").tokens.used >= 0
    clock.now += 2 * MINUTE
    assert reserve(counters, KeyLimits(tokens_per_minute=100), 100).tokens.remaining == 0  # type: ignore[union-attr]


def test_what_was_not_used_can_be_used_by_the_next() -> None:
    """(fault: M3)"""
    counters, limits = LocalCounters(Clock()), KeyLimits(tokens_per_minute=100)
    first = reserve(counters, limits, 90)
    assert reserve(counters, limits, 90).refused == "tokens"
    assert first.reservation is not None
    counters.settle(first.reservation, 10)
    assert reserve(counters, limits, 90).reservation is not None


def test_what_was_used_beyond_the_reservation_is_owed() -> None:
    clock = Clock()
    counters, limits = LocalCounters(clock), KeyLimits(tokens_per_minute=100)
    first = reserve(counters, limits, 10)
    assert first.reservation is not None
    counters.settle(first.reservation, 250)
    refused = reserve(counters, limits, 1)
    assert (refused.refused, refused.tokens.remaining) == ("tokens", 0)  # type: ignore[union-attr]
    clock.now += round(refused.retry_after * 1e9)
    assert reserve(counters, limits, 1).reservation is not None


@pytest.mark.parametrize("tokens", [0, 1, 60])
def test_a_retry_after_the_given_time_finds_tokens(tokens: int) -> None:
    clock = Clock()
    counters, limits = LocalCounters(clock), KeyLimits(tokens_per_minute=100)
    for _ in range(2):
        assert reserve(counters, limits, 50).reservation is not None
        clock.now += 10 * SLOT
    refused = reserve(counters, limits, tokens)
    assert refused.refused == "tokens"
    clock.now += round(refused.retry_after * 1e9) - 1
    assert reserve(counters, limits, tokens).reservation is None
    clock.now += 1
    assert reserve(counters, limits, tokens).reservation is not None


def test_a_request_larger_than_the_limit_is_let_in_alone() -> None:
    counters, limits = LocalCounters(Clock()), KeyLimits(tokens_per_minute=100)
    assert reserve(counters, limits, 5000).reservation is not None
    assert reserve(counters, limits, 0).refused == "tokens"


def test_a_refusal_by_one_limit_uses_up_none_of_the_others() -> None:
    counters, limits = LocalCounters(Clock()), KeyLimits(requests_per_minute=2, tokens_per_minute=100, concurrency=1)
    first = reserve(counters, limits, 60)
    assert first.reservation is not None
    for _ in range(5):
        assert reserve(counters, limits, 60).refused == "concurrency"
    counters.settle(first.reservation, 60)
    for _ in range(5):
        assert reserve(counters, limits, 60).refused == "tokens"
    assert reserve(counters, limits, 40).reservation is not None
    assert reserve(counters, limits).refused == "concurrency"


def test_keys_do_not_share_their_limits() -> None:
    """(fault: L2)"""
    counters, limits = LocalCounters(Clock()), KeyLimits(requests_per_minute=1)
    assert reserve(counters, limits).reservation is not None
    assert reserve(counters, limits).reservation is None
    assert reserve(counters, limits, key="bob").reservation is not None


def test_what_was_used_behind_the_back_counts() -> None:
    counters, limits = LocalCounters(Clock()), KeyLimits(tokens_per_minute=100)
    counters.charge("ann", 100)
    assert reserve(counters, limits, 1).refused == "tokens"


async def test_tasks_that_race_are_granted_the_limit_and_no_more() -> None:
    """(fault: M3)"""
    counters = LocalCounters(Clock())
    limits = KeyLimits(requests_per_minute=100, concurrency=30)

    async def ask() -> bool:
        taken = await counters.reserve("ann", limits, 0)
        if taken.reservation is None:
            return False
        assert counters.running("ann") <= 30
        await asyncio.sleep(0)
        counters.settle(taken.reservation, 0)
        return True

    granted = 0
    for _ in range(20):
        granted += sum(await asyncio.gather(*[ask() for _ in range(50)]))
    assert granted == 100
    assert counters.running("ann") == 0


def test_a_window_holds_no_more_slots_than_a_minute_has() -> None:
    window, now = SlidingWindow(), 0
    for _ in range(5000):
        now += SLOT // 2
        window.slide(now)
        window.add(now, 1)
    assert len(window._slots) <= SLOTS + 1
    assert window.used == sum(window._slots.values())
