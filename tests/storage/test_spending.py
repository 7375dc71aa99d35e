"""What keys have spent, on the disk (spec: E5)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from toolgate.limits import LocalBudgets
from toolgate.storage.database import Database
from toolgate.storage.spending import SpendingStore


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


async def test_amounts_add_up_and_the_new_sums_are_reported(database: Database) -> None:
    store = SpendingStore(database)
    await store.add({("ann", "2026-11"): 0.5, ("bob", "2026-11"): 1.0})
    assert await store.add({("ann", "2026-11"): 0.25}) == {("ann", "2026-11"): 0.75}
    assert await store.sums(["2026-11", "ever"]) == {("ann", "2026-11"): 0.75, ("bob", "2026-11"): 1.0}
    assert await store.sums(["2026-10"]) == {}


async def test_names_may_hold_anything(database: Database) -> None:
    """(fault: Z1)"""
    store = SpendingStore(database)
    await store.add({("'; DROP TABLE spending; --\0\n", "ever"): 1.0})
    assert await store.sums(["ever"]) == {("'; DROP TABLE spending; --\0\n", "ever"): 1.0}


async def test_two_processes_see_each_others_spending_once_it_is_written(storage_url: str) -> None:
    one, two = Database(storage_url), Database(storage_url)
    all_budgets = [LocalBudgets(SpendingStore(each), every=60) for each in (one, two)]
    for budgets in all_budgets:
        await budgets.open()
        budgets.spend("ann", 1.0)
    await asyncio.gather(*[budgets.flush() for budgets in all_budgets])
    all_budgets[0].spend("ann", 0.5)
    await all_budgets[0].aclose()
    assert all_budgets[0].spent("ann", "total") == 2.5
    await all_budgets[1].aclose()
    await one.aclose()
    await two.aclose()
