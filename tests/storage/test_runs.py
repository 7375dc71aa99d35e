"""Runs as rows: who has one, who may write, and the one end that it comes to."""

from typing import Any

import pytest

from toolgate.conversation.errors import ToolgateError
from toolgate.storage.database import Database
from toolgate.storage.runs import AbandonedRun, RunLeaseLost, RunStore, TooManyRuns


class Nodes:
    """A cluster over one database, with a clock of its own; `dead` nodes are known to be so."""

    def __init__(self, database: Database, count: int = 2) -> None:
        self.now = 1000.0
        self.dead: set[str] = set()
        self.database = database
        self.stores = [
            RunStore(database, f"n{number}", lease_seconds=6, is_gone=self.dead.__contains__, clock=self, steady=self)
            for number in range(count)
        ]

    def __call__(self) -> float:
        return self.now

    async def queue(self, id: str = "run", owner: str = "ann") -> None:
        await self.database.change(self.stores[0].opening(id, owner, b"{}"))


async def test_a_queued_run_is_claimed_by_one_node_alone(storage_url: str) -> None:
    """spec: D3"""
    nodes = Nodes(database := Database(storage_url))
    await nodes.queue()
    claims = [await store.claim("run") for store in nodes.stores]
    assert [claim and (claim.node, claim.token, claim.state) for claim in claims] == [("n0", 1, "running"), None]
    await database.aclose()


async def test_an_owner_has_only_so_many_runs_that_have_not_ended(storage_url: str) -> None:
    nodes = Nodes(database := Database(storage_url))
    store = nodes.stores[0]
    await database.change(store.opening("one", "ann", b"{}", most=1))
    with pytest.raises(TooManyRuns):
        await database.change(store.opening("two", "ann", b"{}", most=1))
    await database.change(store.opening("three", "bob", b"{}", most=1))
    claim = await store.claim("one")
    assert claim is not None
    await database.change(store.ending("one", claim.token, "completed"))
    assert await store.not_live(["one", "two", "three"]) == ["one", "two"]
    await database.change(store.opening("two", "ann", b"{}", most=1))
    await database.aclose()


async def test_a_silent_node_loses_its_runs_and_can_write_nothing(storage_url: str) -> None:
    """fault: M6"""
    nodes = Nodes(database := Database(storage_url))
    paused, other = nodes.stores
    await nodes.queue()
    old = await paused.claim("run")
    assert old is not None
    assert await other.take_abandoned() == []
    nodes.now += 5
    assert [held.id for held in await paused.renew(["run"])] == ["run"]
    nodes.now += 2
    assert await other.take_abandoned() == [], "it was renewed since"
    nodes.now += 5
    assert await other.take_abandoned() == []
    nodes.now += 2
    assert await other.take_abandoned() == [AbandonedRun("run", True)]
    new = await other.claim("run")
    assert new is not None
    assert new.token > old.token
    assert await paused.renew(["run"]) == []
    for write in (paused.checking("run", old.token), paused.ending("run", old.token, "completed")):
        with pytest.raises(RunLeaseLost):
            await database.change(write)
    assert not await paused.release("run", old.token)
    await database.change(other.ending("run", new.token, "completed"))
    await database.aclose()


async def test_the_lease_of_a_node_that_is_certainly_dead_is_not_waited_for(storage_url: str) -> None:
    """fault: K-A"""
    nodes = Nodes(database := Database(storage_url))
    await nodes.queue()
    await nodes.stores[0].claim("run")
    assert await nodes.stores[1].take_abandoned() == []
    nodes.dead.add("n0")
    assert await nodes.stores[1].take_abandoned() == [AbandonedRun("run", True)]
    assert await nodes.stores[1].take_abandoned() == []  # given a while to be begun
    await database.aclose()


async def test_a_run_that_is_given_back_can_be_taken_at_once_and_nothing_is_held_against_it(storage_url: str) -> None:
    nodes = Nodes(database := Database(storage_url))
    first, second = nodes.stores
    await nodes.queue()
    claim = await first.claim("run")
    assert claim is not None
    assert await first.release("run", claim.token)
    assert await second.take_abandoned() == [AbandonedRun("run", False)]
    again = await second.claim("run")
    assert again is not None
    assert again.attempts == 1
    await database.aclose()


@pytest.mark.parametrize(
    ("waits", "steps", "attempts"), [(False, 0, 2), (False, 3, 1), (True, 0, 1)], ids=["crash", "progress", "waiting"]
)
async def test_a_crash_without_progress_counts_unless_a_person_was_waited_for(
    storage_url: str, waits: bool, steps: int, attempts: int
) -> None:
    """fault: K-F"""
    nodes = Nodes(database := Database(storage_url))
    first, second = nodes.stores
    await nodes.queue()
    claim = await first.claim("run")
    assert claim is not None
    if waits:
        await first.set_waiting("run", claim.token, True)
    assert await second.take_abandoned() == []
    nodes.now += 7
    await second.take_abandoned()
    again = await second.claim("run", steps)
    assert again is not None
    assert again.attempts == attempts
    await database.aclose()


async def test_a_run_ends_once_and_stays_as_it_ended(storage_url: str) -> None:
    """fault: M8"""
    nodes = Nodes(database := Database(storage_url))
    store = nodes.stores[0]
    await nodes.queue()
    claim = await store.claim("run")
    assert claim is not None
    await database.change(store.ending("run", claim.token, "cancelled"))
    with pytest.raises(RunLeaseLost):
        await database.change(store.ending("run", claim.token, "completed"))
    assert await store.claim("run") is None
    assert await store.cancel("run") is None
    nodes.now += 100
    assert await store.take_abandoned() == []
    assert (run := await store.load("run")) is not None
    assert (run.state, run.is_over) == ("cancelled", True)
    await database.aclose()


async def test_a_lost_claim_undoes_what_was_written_with_it(storage_url: str) -> None:
    """fault: M6"""
    nodes = Nodes(database := Database(storage_url))
    await nodes.queue()

    def write(db: Any) -> None:
        nodes.stores[0].opening("other", "ann", b"{}")(db)
        nodes.stores[0].checking("run", 7)(db)

    with pytest.raises((RunLeaseLost, ToolgateError)):
        await database.change(write)
    assert await nodes.stores[0].load("other") is None
    await database.aclose()


async def test_the_node_that_has_a_run_sees_that_it_is_to_be_cancelled(storage_url: str) -> None:
    nodes = Nodes(database := Database(storage_url))
    await nodes.queue()
    await nodes.stores[0].claim("run")
    assert (run := await nodes.stores[1].cancel("run")) is not None
    assert run.node == "n0"
    assert [held.cancel for held in await nodes.stores[0].renew(["run"])] == [True]
    await database.aclose()


async def test_ended_runs_are_forgotten_after_a_while_and_live_ones_never(storage_url: str) -> None:
    nodes = Nodes(database := Database(storage_url))
    store = nodes.stores[0]
    for id in ("over", "live"):
        await nodes.queue(id)
    claim = await store.claim("over")
    assert claim is not None
    await database.change(store.ending("over", claim.token, "completed"))
    nodes.now += 61
    await store.delete_ended_before(60)
    assert [await store.load(id) is not None for id in ("over", "live")] == [False, True]
    await database.aclose()
