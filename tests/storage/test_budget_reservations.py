"""Budgets over several nodes: passed by one request at most, and never paid or given back twice (spec: D4; fault: M4)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.limits import BudgetReservation, KeyBudget, LocalBudgets, SharedBudgets
from toolgate.storage.budget_reservations import BudgetReservationStore
from toolgate.storage.database import Database
from toolgate.storage.spending import SpendingStore

MONTH = KeyBudget(1.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def nodes(storage_url: str) -> AsyncIterator[list[SharedBudgets]]:
    databases = [Database(storage_url), Database(storage_url)]
    opened = [
        SharedBudgets(LocalBudgets(SpendingStore(one), every=60), BudgetReservationStore(one)) for one in databases
    ]
    yield opened
    for budgets, database in zip(opened, databases, strict=True):
        await budgets.aclose()
        await database.aclose()


async def taken(budgets: SharedBudgets, cost: float, budget: KeyBudget = MONTH) -> BudgetReservation:
    held = await budgets.reserve("ann", budget, cost)
    assert held is not None
    return held


async def test_many_at_once_on_two_nodes_pass_a_budget_by_nothing_they_hold(nodes: list[SharedBudgets]) -> None:
    tries = await asyncio.gather(*[nodes[number % 2].reserve("ann", MONTH, 0.3) for number in range(30)])
    held = [(number % 2, one) for number, one in enumerate(tries) if one is not None]
    assert len(held) == 3
    for node, one in held:
        nodes[node].settle(one, 0.3)
        nodes[node].settle(one, 0.3)
    await asyncio.gather(*[one._settling for one in nodes if one._settling])
    assert await nodes[0].reserve("ann", MONTH, 0.3) is not None  # alone it may pass the budget
    assert nodes[0].spent("ann", "month") == pytest.approx(0.9)
    assert await nodes[1].reserve("ann", MONTH, 0.3) is None


async def test_one_after_the_other_never_waits_for_itself(nodes: list[SharedBudgets]) -> None:
    """The second comes before the first is written down."""
    [budgets, _] = nodes
    for _ in range(4):
        budgets.settle(await taken(budgets, 0.3), 0.25)
    assert await budgets.reserve("ann", MONTH, 0.3) is None
    assert budgets.spent("ann", "month") == 1.0


async def test_what_a_request_costs_beyond_its_reservation_counts_for_the_next(nodes: list[SharedBudgets]) -> None:
    """The excess is spent in memory first: it was written a second later, and until then every request was admitted."""
    [budgets, other] = nodes
    held = await taken(budgets, 0.1)
    budgets.spend("ann", 1.4)
    budgets.settle(held, 0.1)
    assert await budgets.reserve("ann", MONTH, 0.1) is None
    assert await other.reserve("ann", MONTH, 0.1) is None
    assert budgets.spent("ann", "month") == other.spent("ann", "month") == 1.5


async def test_what_was_broken_off_is_given_back(nodes: list[SharedBudgets]) -> None:
    one, two = nodes
    held = await taken(one, 0.9)
    assert await two.reserve("ann", MONTH, 0.2) is None
    one.settle(held, 0.0)
    await asyncio.gather(*[one._settling] if one._settling else [])
    two.settle(await taken(two, 0.2), 0.2)


async def test_a_dear_request_makes_the_next_hold_more(nodes: list[SharedBudgets]) -> None:
    [budgets, other] = nodes
    budgets.settle(await taken(budgets, 0.01), 0.5)
    first = await taken(budgets, 0.01)
    assert first.amount == 0.5
    assert await other.reserve("ann", MONTH, 0.01) is None
    budgets.settle(first, 0.1)


async def test_what_a_dead_node_held_is_free_after_a_while(storage_url: str) -> None:
    clock, database = Clock(), Database(storage_url)
    holds = BudgetReservationStore(database, lease=100, now=clock, steady=clock)
    assert await holds.reserve("1", "ann", "ever", 1.0, 0.9, ()) == (True, 0.0)
    assert await holds.reserve("2", "ann", "ever", 1.0, 0.9, ()) == (False, 0.0)
    clock.now += 101
    assert await holds.reserve("3", "ann", "ever", 1.0, 0.9, ()) == (True, 0.0)
    for _ in range(2):
        await holds.settle([("1", "ann", ("ever",), 5.0)])  # it lives after all, and pays once
    assert await holds.reserve("4", "ann", "ever", 1.0, 0.0, ()) == (False, 5.0)
    await database.aclose()


async def test_a_run_that_has_waited_for_months_for_its_approvals_is_charged(storage_url: str) -> None:
    """Its reservation was deleted after a week, and without it nothing that the run had used was charged."""
    clock, database = Clock(), Database(storage_url)
    store = BudgetReservationStore(database, now=clock, steady=clock)
    await store.reserve("1", "ann", "ever", 1.0, 0.1, ())
    for _ in range(3):
        clock.now += 30 * 86_400
        assert await store.reserve("2", "ann", "ever", 1.0, 0.1, ()) == (True, 0.0)  # others come and go meanwhile
        await store.settle([("2", "ann", ("ever",), 0.0)])
    await store.settle([("1", "ann", ("ever",), 5.0)])
    assert await store.reserve("3", "ann", "ever", 1.0, 0.1, ()) == (False, 5.0)
    await database.aclose()


class Held:
    """A store whose answers are held back: what it was asked to reserve is reserved by then."""

    def __init__(self, store: BudgetReservationStore) -> None:
        self._store = store
        self.reserved, self.go, self.settled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reserve(self, *arguments: Any) -> tuple[bool, float]:
        answer = await self._store.reserve(*arguments)
        self.reserved.set()
        await self.go.wait()
        return answer

    async def settle(self, settled: Any) -> None:
        await self._store.settle(settled)
        self.settled.set()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_request_that_is_cancelled_while_it_reserves_keeps_nothing_reserved(
    storage_url: str, closed: bool
) -> None:
    """A client that left over a WebSocket left its reservation behind, which counted for a quarter of an hour."""
    database = Database(storage_url)
    store = BudgetReservationStore(database)
    held = Held(store)
    budgets = SharedBudgets(LocalBudgets(SpendingStore(database), every=60), held)
    reserving = asyncio.ensure_future(budgets.reserve("ann", MONTH, 0.9))
    async with asyncio.timeout(60):
        await held.reserved.wait()
        reserving.cancel()
        await asyncio.wait({reserving})
        closing = asyncio.ensure_future(budgets.aclose()) if closed else None
        held.go.set()
        await (closing or held.settled.wait())
        assert await store.reserve("next", "ann", "month", 1.0, 0.9, ()) == (True, 0.0)
    await budgets.aclose()
    await database.aclose()


class Flaky:
    """A store that is away at times."""

    def __init__(self, store: BudgetReservationStore) -> None:
        self._book = store
        self.away = False
        self.tried = asyncio.Event()

    async def reserve(self, *arguments: Any) -> tuple[bool, float]:
        if self.away:
            raise GatewayOverloaded("The storage is not available.")
        return await self._book.reserve(*arguments)

    async def settle(self, settled: Any) -> None:
        self.tried.set()
        if self.away:
            raise GatewayOverloaded("The storage is not available.")
        await self._book.settle(settled)


async def test_without_the_database_no_request_is_admitted_and_nothing_is_lost(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.limits.shared_budgets._RETRY_SECONDS", 0.01)
    database = Database(storage_url)
    store = Flaky(BudgetReservationStore(database))
    budgets = SharedBudgets(LocalBudgets(SpendingStore(database), every=60), store)
    held = await taken(budgets, 0.4)
    store.away = True
    budgets.settle(held, 0.4)
    await store.tried.wait()
    with pytest.raises(GatewayOverloaded):
        await budgets.reserve("ann", MONTH, 0.1)
    store.away = False
    assert budgets._settling is not None
    await budgets._settling
    assert (
        await BudgetReservationStore(database).reserve("x", "ann", budgets._local.label("month"), 9.0, 0.0, ())
    ) == (
        True,
        0.4,
    )
    await budgets.aclose()
    await database.aclose()
