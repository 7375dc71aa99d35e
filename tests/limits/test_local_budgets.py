"""Budgets survive a restart, and concurrent requests exceed one by a single request at most (spec: E5; fault: M4)."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.limits import KeyBudget, LocalBudgets
from toolgate.limits.local_budgets import Sums


class FakeSpendingStore:
    """Sums in a dictionary; with `broken` writes fail, `wrote` is set after each batch."""

    def __init__(self) -> None:
        self.sums_by: Sums = {}
        self.batches = 0
        self.broken = False
        self.wrote = asyncio.Event()

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
        self.batches += 1
        self.wrote.set()
        if self.broken:
            raise GatewayOverloaded("no disk")
        for at, amount in amounts.items():
            self.sums_by[at] = self.sums_by.get(at, 0.0) + amount
        return {at: self.sums_by[at] for at in amounts}

    async def sums(self, labels: Iterable[str]) -> Sums:
        wanted = set(labels)
        return {(key, label): amount for (key, label), amount in self.sums_by.items() if label in wanted}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 12, 31, 23, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["reserve", "settle"])), max_size=60),
    st.integers(1, 20),
)
def test_a_budget_is_exceeded_by_one_request_at_most(steps: list[tuple[int, str]], amount: int) -> None:
    """No request costs more than was reserved for it, 10 at most. (fault: M4)"""

    async def play() -> None:
        budgets, budget, running = LocalBudgets(FakeSpendingStore(), every=60), KeyBudget(amount, "total"), []
        for cost, what in steps:
            if what == "reserve" and (held := await budgets.reserve("ann", budget, 10.0)):
                running.append((held, cost))
            elif what == "settle" and running:
                held, cost = running.pop(0)
                budgets.settle(held, cost)
                budgets.settle(held, cost)
        for held, cost in running:
            budgets.settle(held, cost)
        assert budgets.spent("ann", "total") <= amount + 10
        assert budgets._reserved.get("ann", (0, 0.0)) == (0, 0.0)
        await budgets.aclose()

    asyncio.run(play())


async def test_fifty_concurrent_requests_are_not_all_admitted_to_a_small_budget() -> None:
    """(fault: M4)"""
    budgets, budget = LocalBudgets(FakeSpendingStore(), every=60), KeyBudget(1.0)
    held = [one for _ in range(50) if (one := await budgets.reserve("ann", budget, 0.3))]
    assert len(held) == 3
    for one in held:
        budgets.settle(one, 0.3)
    last = await budgets.reserve("ann", budget, 0.3)
    assert last is not None
    assert await budgets.reserve("ann", budget, 0.0) is None
    budgets.settle(last, 0.3)
    assert await budgets.reserve("ann", budget, 0.0) is None
    assert budgets.spent("ann", "month") == pytest.approx(1.2)
    await budgets.aclose()


async def test_the_highest_cost_so_far_is_reserved_for_a_request() -> None:
    budgets, budget = LocalBudgets(FakeSpendingStore(), every=60), KeyBudget(1.0)
    budgets.spend("ann", 0.4)
    assert await budgets.reserve("ann", budget, 0.0) is not None
    assert await budgets.reserve("ann", budget, 0.0) is None
    await budgets.aclose()


async def test_a_new_day_or_month_renews_a_budget_and_nothing_renews_a_total() -> None:
    clock = Clock()
    budgets = LocalBudgets(FakeSpendingStore(), every=60, clock=clock)
    budgets.spend("ann", 5.0)
    day, month, total = (KeyBudget(5.0, "day"), KeyBudget(5.0, "month"), KeyBudget(5.0, "total"))
    assert [await budgets.reserve("ann", budget, 0.1) for budget in (day, month, total)] == [None, None, None]
    assert [budgets.renews_in(budget) for budget in (day, month, total)] == [3600.0, 3600.0, None]
    clock.now += timedelta(hours=2)
    for budget in (day, month):
        held = await budgets.reserve("ann", budget, 0.1)
        assert held is not None
        budgets.settle(held, 0.0)
    assert await budgets.reserve("ann", total, 0.1) is None
    await budgets.aclose()


async def test_a_day_that_a_clock_is_set_back_to_is_spent_as_it_was() -> None:
    """fault: K-M"""
    clock, store, day = Clock(), FakeSpendingStore(), KeyBudget(5.0, "day")
    before = LocalBudgets(store, every=60, clock=clock)
    before.spend("ann", 5.0)
    await before.aclose()
    clock.now += timedelta(days=1)
    budgets = LocalBudgets(store, every=60, clock=clock)
    held = await budgets.reserve("ann", day, 0.1)
    assert held is not None
    budgets.settle(held, 1.0)
    clock.now -= timedelta(days=1)
    assert await asyncio.gather(*[budgets.reserve("ann", day, 0.1) for _ in range(3)]) == [None, None, None]
    clock.now += timedelta(days=1)
    await budgets.open()
    assert budgets.spent("ann", "day") == pytest.approx(1.0), "what was not written yet counts"
    await budgets.aclose()
    assert store.sums_by["ann", "ever"] == pytest.approx(6.0)


async def test_spending_is_written_in_batches_and_read_back() -> None:
    store = FakeSpendingStore()
    budgets = LocalBudgets(store, every=0.001)
    for _ in range(100):
        budgets.spend("ann", 0.01)
    await store.wrote.wait()
    budgets.spend("ann", 1.0)
    await budgets.aclose()
    assert store.batches <= 3
    again = LocalBudgets(store)
    await again.open()
    assert again.spent("ann", "total") == pytest.approx(2.0)
    assert again.spent("ann", "day") == pytest.approx(2.0)


async def test_spending_during_a_write_is_not_lost() -> None:
    class Busy(FakeSpendingStore):
        async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
            if not self.batches:
                budgets.spend("ann", 0.5)
            return await super().add(amounts)

    store = Busy()
    budgets = LocalBudgets(store, every=60)
    budgets.spend("ann", 1.0)
    await budgets.flush()
    assert budgets.spent("ann", "total") == 1.5
    await budgets.aclose()
    assert set(store.sums_by.values()) == {1.5}


async def test_spending_that_cannot_be_written_is_written_next_time() -> None:
    store = FakeSpendingStore()
    store.broken = True
    budgets = LocalBudgets(store, every=0.001)
    budgets.spend("ann", 1.0)
    await store.wrote.wait()
    with pytest.raises(GatewayOverloaded):
        await budgets.aclose()
    assert budgets.spent("ann", "total") == 1.0
    store.broken = False
    await budgets.flush()
    await budgets.flush()
    assert set(store.sums_by.values()) == {1.0}
