"""The runs of a node: taken, looked after, cancelled, given up and given back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from toolgate.conversation.errors import Overloaded
from toolgate.runs.execution import InProcess
from toolgate.runs.host import Attempt, Runs, Stop, Terms
from toolgate.storage.database import Database
from toolgate.storage.runs import End, LeaseLost, RunStore, StoredRun


class Player:
    """Performs runs until it is told to stop, and writes their ends."""

    def __init__(self, database: Database, store: RunStore) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped: list[Stop] = []
        self._database = database
        self._store = store

    async def perform(self, attempt: Attempt) -> None:
        self.begun.set()
        try:
            await self.go_on.wait()
            await self._end(attempt, "completed")
        except asyncio.CancelledError:
            if not attempt.cancelled:
                raise
            await self._end(attempt, "cancelled")

    async def stop(self, attempt: Attempt, how: Stop) -> None:
        self.stopped.append(how)
        await self._end(attempt, "failed" if how == "lost" else how)

    async def _end(self, attempt: Attempt, how: End) -> None:
        await self._database.change(self._store.ending(attempt.run.id, attempt.run.token, how))


class Node:
    """One node over a database that others may share."""

    def __init__(self, database: Database, name: str = "n0", crashes: int = 3) -> None:
        self.complaints: list[str] = []
        self.store = RunStore(database, name, lease_seconds=0.3)
        self.player = Player(database, self.store)
        terms = Terms(look_seconds=0.01, crashes=crashes)
        self.runs = Runs(self.store, InProcess(), terms, self.complaints.append)
        self.runs.open(self.player)
        self._database = database

    async def queue(self, id: str = "run", begin: bool = True) -> None:
        await self._database.change(self.store.opening(id, "ann", b"{}"))
        if begin:
            self.runs.start(id)

    async def comes_to(self, check: Callable[[StoredRun], bool], id: str = "run") -> StoredRun:
        for _ in range(500):
            run = await self.store.load(id)
            if run is not None and check(run):
                return run
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come to that")


@asynccontextmanager
async def one_node() -> AsyncIterator[Node]:
    database = Database(None)
    node = Node(database)
    yield node
    await node.runs.aclose()
    await database.aclose()
    assert node.complaints == []


async def test_a_run_is_carried_out_to_its_end_and_kept_meanwhile() -> None:
    async with one_node() as node:
        await node.queue()
        await node.player.begun.wait()
        held = await node.comes_to(lambda run: run.state == "running")
        await node.comes_to(lambda run: run.lease > held.lease)
        node.player.go_on.set()
        await node.comes_to(lambda run: run.state == "completed")
        assert not node.runs.has("run")


async def test_a_run_that_was_queued_and_forgotten_is_found_and_begun() -> None:
    """fault: K-A: the process ended between accepting the run and beginning it."""
    async with one_node() as node:
        await node.queue(begin=False)
        node.player.go_on.set()
        await node.comes_to(lambda run: run.state == "completed")


async def test_a_cancelled_run_ends_before_the_cancelling_returns() -> None:
    async with one_node() as node:
        await node.queue()
        await node.player.begun.wait()
        await node.runs.cancel("run")
        assert (await node.comes_to(lambda run: run.is_over)).state == "cancelled"
        await node.runs.cancel("run")


async def test_a_run_that_nobody_has_begun_is_cancelled_without_being_begun() -> None:
    async with one_node() as node:
        await node.queue(begin=False)
        await node.runs.cancel("run")
        assert (await node.comes_to(lambda run: run.is_over)).state == "cancelled"
        assert not node.player.begun.is_set()


async def test_a_run_is_cancelled_on_the_node_that_has_it() -> None:
    database = Database(None)
    one, other = Node(database, "one"), Node(database, "other")
    await one.queue()
    await one.player.begun.wait()
    await other.runs.cancel("run")
    assert (await one.comes_to(lambda run: run.is_over)).state == "cancelled"
    assert not other.player.begun.is_set()
    for node in (one, other):
        await node.runs.aclose()
    await database.aclose()


async def test_a_run_that_brought_down_its_node_too_often_is_given_up() -> None:
    """fault: K-F"""
    database = Database(None)
    dead = RunStore(database, "dead", lease_seconds=-1)
    await database.change(dead.opening("run", "ann", b"{}"))
    for _ in range(3):
        assert await dead.claim("run") is not None
        await dead.free()
    node = Node(database)
    await node.comes_to(lambda run: run.state == "parked")
    assert node.player.stopped == ["parked"]
    assert not node.player.begun.is_set()
    await node.runs.aclose()
    await database.aclose()


async def test_a_node_that_closes_gives_its_runs_back_and_another_goes_on() -> None:
    """requirement D3"""
    database = Database(None)
    one, other = Node(database, "one"), Node(database, "other")
    await one.queue()
    await one.player.begun.wait()
    other.player.go_on.set()
    await one.runs.aclose()
    over = await other.comes_to(lambda run: run.is_over)
    assert (over.state, over.attempts) == ("completed", 1)
    await other.runs.aclose()
    await database.aclose()


async def test_a_node_that_lost_its_run_stops_without_a_word() -> None:
    """fault: M6"""
    async with one_node() as node:
        await node.queue()
        await node.player.begun.wait()
        await node._database.change(lambda db: db.execute("UPDATE runs SET token = token + 1, node = 'other'"))
        for _ in range(500):
            if not node.runs.has("run"):
                break
            await asyncio.sleep(0.01)
        assert (run := await node.store.load("run")) is not None
        assert run.state == "running"
        with pytest.raises(LeaseLost):
            await node.store.check("run", 1)


async def test_what_fails_at_every_look_is_told_once() -> None:
    class Away(InProcess):
        async def forget(self, ids: Sequence[str]) -> None:
            looked.append(1)
            raise Overloaded("The storage is not available.")

    looked: list[int] = []
    database = Database(None)
    node = Node(database)
    node.runs._execution = Away()
    while len(looked) < 3:
        node.runs._over.append("run")
        await asyncio.sleep(0.01)
    await node.runs.aclose()
    await database.aclose()
    assert node.complaints == ["The storage is not available."]
