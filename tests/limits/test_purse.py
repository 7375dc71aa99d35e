"""Budgets: what is spent survives, and many at once pass a budget by one of them at most (E5; fault: M4)."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import Overloaded
from toolgate.limits import Budget, Purse
from toolgate.limits.purse import Sums


class Notes:
    """Sums in a dictionary; `broken` refuses to write, `wrote` is set after each batch."""

    def __init__(self) -> None:
        self.sums_by: Sums = {}
        self.batches = 0
        self.broken = False
        self.wrote = asyncio.Event()

    async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
        self.batches += 1
        self.wrote.set()
        if self.broken:
            raise Overloaded("no disk")
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
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["take", "settle"])), max_size=60),
    st.integers(1, 20),
)
def test_a_budget_is_passed_by_one_request_at_most(steps: list[tuple[int, str]], amount: int) -> None:
    """No request costs more than was held back for it, 10 at most. (fault: M4)"""

    async def play() -> None:
        purse, budget, running = Purse(Notes(), every=60), Budget(amount, "total"), []
        for cost, what in steps:
            if what == "take" and (held := purse.hold("ann", budget, 10.0)):
                running.append((held, cost))
            elif what == "settle" and running:
                held, cost = running.pop(0)
                purse.settle(held, cost)
                purse.settle(held, cost)
        for held, cost in running:
            purse.settle(held, cost)
        assert purse.spent("ann", "total") <= amount + 10
        assert purse._held.get("ann", (0, 0.0)) == (0, 0.0)
        await purse.aclose()

    asyncio.run(play())


async def test_fifty_at_once_are_not_all_let_into_a_small_budget() -> None:
    """(fault: M4)"""
    purse, budget = Purse(Notes(), every=60), Budget(1.0)
    held = [one for _ in range(50) if (one := purse.hold("ann", budget, 0.3))]
    assert len(held) == 3
    for one in held:
        purse.settle(one, 0.3)
    last = purse.hold("ann", budget, 0.3)
    assert last is not None
    assert purse.hold("ann", budget, 0.0) is None
    purse.settle(last, 0.3)
    assert purse.hold("ann", budget, 0.0) is None
    assert purse.spent("ann", "month") == pytest.approx(1.2)
    await purse.aclose()


async def test_a_request_is_expected_to_cost_as_much_as_the_dearest_so_far() -> None:
    purse, budget = Purse(Notes(), every=60), Budget(1.0)
    purse.spend("ann", 0.4)
    assert purse.hold("ann", budget, 0.0) is not None
    assert purse.hold("ann", budget, 0.0) is None
    await purse.aclose()


async def test_a_new_day_or_month_renews_a_budget_and_nothing_renews_a_total() -> None:
    clock = Clock()
    purse = Purse(Notes(), every=60, clock=clock)
    purse.spend("ann", 5.0)
    day, month, total = (Budget(5.0, "day"), Budget(5.0, "month"), Budget(5.0, "total"))
    assert [purse.hold("ann", budget, 0.1) for budget in (day, month, total)] == [None, None, None]
    assert [purse.renews_in(budget) for budget in (day, month, total)] == [3600.0, 3600.0, None]
    clock.now += timedelta(hours=2)
    for budget in (day, month):
        held = purse.hold("ann", budget, 0.1)
        assert held is not None
        purse.settle(held, 0.0)
    assert purse.hold("ann", total, 0.1) is None
    await purse.aclose()


async def test_spending_is_written_in_batches_and_read_back() -> None:
    notes = Notes()
    purse = Purse(notes, every=0.001)
    for _ in range(100):
        purse.spend("ann", 0.01)
    await notes.wrote.wait()
    purse.spend("ann", 1.0)
    await purse.aclose()
    assert notes.batches <= 3
    again = Purse(notes)
    await again.open()
    assert again.spent("ann", "total") == pytest.approx(2.0)
    assert again.spent("ann", "day") == pytest.approx(2.0)


async def test_what_is_spent_while_a_batch_is_written_is_not_forgotten() -> None:
    class Busy(Notes):
        async def add(self, amounts: Mapping[tuple[str, str], float]) -> Sums:
            if not self.batches:
                purse.spend("ann", 0.5)
            return await super().add(amounts)

    notes = Busy()
    purse = Purse(notes, every=60)
    purse.spend("ann", 1.0)
    await purse.flush()
    assert purse.spent("ann", "total") == 1.5
    await purse.aclose()
    assert set(notes.sums_by.values()) == {1.5}


async def test_what_cannot_be_written_is_kept_for_the_next_time() -> None:
    notes = Notes()
    notes.broken = True
    purse = Purse(notes, every=0.001)
    purse.spend("ann", 1.0)
    await notes.wrote.wait()
    with pytest.raises(Overloaded):
        await purse.aclose()
    assert purse.spent("ann", "total") == 1.0
    notes.broken = False
    await purse.flush()
    await purse.flush()
    assert set(notes.sums_by.values()) == {1.0}
