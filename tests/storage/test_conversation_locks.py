"""One response at a time in a conversation, whichever nodes make them (spec: D4; fault: M5)."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import sampled_from

from toolgate.conversation.errors import Conflict
from toolgate.conversation.random_ids import random_suffix
from toolgate.storage.conversation_locks import ConversationLocks
from toolgate.storage.conversations import ConversationStore, StoredConversation
from toolgate.storage.database import Database


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def nodes(storage_url: str, clock: Clock) -> Any:
    databases = [Database(storage_url), Database(storage_url)]
    yield [ConversationLocks(one, lease_seconds=60, clock=clock, steady=clock) for one in databases]
    for one in databases:
        await one.aclose()


async def test_one_node_has_a_conversation_until_it_leaves(nodes: list[ConversationLocks]) -> None:
    one, two = nodes
    holder = await one.acquire("c")
    assert holder is not None
    assert await two.acquire("c") is None
    assert await two.acquire("d") is not None
    await one.release("c", holder)
    assert await two.acquire("c") is not None


async def test_of_many_concurrent_requests_one_gets_the_lock(nodes: list[ConversationLocks]) -> None:
    taken = await asyncio.gather(*[nodes[n % 2].acquire(f"c{n // 2}") for n in range(40)])
    for first, second in zip(taken[::2], taken[1::2], strict=True):
        assert (first is None) != (second is None)


async def test_what_a_dead_node_had_is_free_when_its_time_is_over(nodes: list[ConversationLocks], clock: Clock) -> None:
    one, two = nodes
    await one.acquire("c")
    assert await two.acquire("c") is None
    clock.now += 30
    await one.renew(["c"])
    clock.now += 31
    assert await two.acquire("c") is None, "it was renewed since"
    clock.now += 59
    assert await two.acquire("c") is None
    clock.now += 2
    assert await two.acquire("c") is not None


async def test_a_late_release_does_not_release_the_next_lock(nodes: list[ConversationLocks]) -> None:
    one, two = nodes
    first = await one.acquire("c")
    second = await one.acquire("c")  # the node itself says that the first is over
    assert first is not None
    assert second is not None
    await one.release("c", first)
    assert await two.acquire("c") is None


async def test_a_node_that_slept_through_its_lease_writes_nothing(storage_url: str, clock: Clock) -> None:
    """The other has come and gone meanwhile, so that no lock is left to be seen. (fault: M5)"""
    databases = [Database(storage_url), Database(storage_url)]
    one, two = [ConversationStore(database) for database in databases]
    one.locks, two.locks = [
        ConversationLocks(database, lease_seconds=60, clock=clock, steady=clock) for database in databases
    ]
    await one.create(StoredConversation("c", "ann", 1, {}), [])
    await one.locks.acquire("c")
    assert await two.locks.acquire("c") is None
    clock.now += 61
    await two.locks.acquire("c")
    assert await two.append("ann", "c", [{"id": "first"}])
    with pytest.raises(Conflict):
        await one.append("ann", "c", [{"id": "late"}])
    assert [item["id"] for item in await one.items("ann", "c")] == ["first"]
    for database in databases:
        await database.aclose()


class Turns(RuleBasedStateMachine):
    """Two nodes make turns in one conversation: begin, end, break off, die, and sleep too long."""

    databases: tuple[Database, Database]
    runner: asyncio.Runner

    @initialize()
    def open(self) -> None:
        self.clock = Clock()
        self.stores = [self._store(one) for one in self.databases]
        self.under_way: dict[int, tuple[str, int]] = {}
        self.made = 0
        self.id = "conv_" + random_suffix(20)
        self._run(self.stores[0].create(StoredConversation(self.id, "ann", 1, {}), []))

    def _store(self, database: Database) -> ConversationStore:
        store = ConversationStore(database)
        store.locks = ConversationLocks(database, lease_seconds=60, clock=self.clock, steady=self.clock)
        return store

    def _run(self, work: Any) -> Any:
        return self.runner.run(work)

    @rule(node=sampled_from((0, 1)))
    def begin(self, node: int) -> None:
        if node in self.under_way:
            return  # within a node a set of its own sees to this
        holder = self._run(self.stores[node].locks.acquire(self.id))
        if holder is not None:
            self.under_way[node] = (holder, len(self._items()))

    @precondition(lambda self: self.under_way)
    @rule(node=sampled_from((0, 1)))
    def end(self, node: int) -> None:
        if node not in self.under_way:
            return
        _, seen = self.under_way.pop(node)
        self.made += 1
        call = {"id": f"fc_{self.made}", "type": "function_call", "seen": seen}
        output = {"id": f"fco_{self.made}", "type": "function_call_output"}
        with suppress(Conflict):  # it slept too long
            self._run(self.stores[node].append("ann", self.id, [call, output]))

    @precondition(lambda self: self.under_way)
    @rule(node=sampled_from((0, 1)))
    def break_off(self, node: int) -> None:
        if node in self.under_way:
            holder, _ = self.under_way.pop(node)
            self._run(self.stores[node].locks.release(self.id, holder))

    @rule(node=sampled_from((0, 1)))
    def die_and_start_again(self, node: int) -> None:
        self.under_way.pop(node, None)
        self.stores[node] = self._store(self.databases[node])

    @precondition(lambda self: self.under_way)
    @rule()
    def sleep_too_long(self) -> None:
        self.clock.now += 61

    @precondition(lambda self: self.under_way)
    @rule()
    def one_sleeps_while_the_other_makes_a_turn(self) -> None:
        node = 1 - next(iter(self.under_way))
        self.begin(node)
        self.sleep_too_long()
        self.begin(node)
        self.end(node)

    @rule(node=sampled_from((0, 1)))
    def beat(self, node: int) -> None:
        self._run(self.stores[node].locks.renew([self.id]))

    def _items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._run(self.stores[0].items("ann", self.id))
        return found

    @invariant()
    def every_turn_stands_where_it_was_made(self) -> None:
        if not hasattr(self, "stores"):
            return
        items = self._items()
        for place in range(0, len(items), 2):
            call, output = items[place], items[place + 1]
            assert call["id"].removeprefix("fc_") == output["id"].removeprefix("fco_")
            assert call["seen"] == place


def test_turns_of_two_nodes_never_mix(storage_url: str) -> None:
    """(fault: M5)"""
    databases = (Database(storage_url), Database(storage_url))
    with asyncio.Runner() as runner:
        machine = type("Turns", (Turns,), {"databases": databases, "runner": runner})
        run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=12))
        for database in databases:
            runner.run(database.aclose())


async def test_what_a_node_had_that_is_known_to_be_dead_is_free_at_once() -> None:
    """(fault: K-A): nobody waits for the lease of a process that was killed."""
    database = Database(None)
    dead = ConversationLocks(database, node="box:1")
    alive = ConversationLocks(database, node="box:2", is_gone=lambda node: node == "box:1")
    await dead.acquire("conv_1")
    assert await database.change(alive.releasing("conv_1"))
    assert await alive.acquire("conv_1") is not None
    assert await dead.acquire("conv_1") is None
    await database.aclose()
