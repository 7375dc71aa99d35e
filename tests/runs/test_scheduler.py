"""The scheduler of a node: runs are claimed, renewed, cancelled, parked and released."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.runs.executor import InProcessExecutor, RunExecutor
from toolgate.runs.scheduler import EarlyEnd, LeasedRunScheduler, RunAttempt, SchedulerOptions
from toolgate.storage.database import Database
from toolgate.storage.runs import End, RunLeaseLost, RunStore, StoredRun


class WaitingHandler:
    """Performs runs when `go_on` is set, and stores their ends."""

    def __init__(self, database: Database, store: RunStore) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped: list[EarlyEnd] = []
        self._database = database
        self._store = store

    async def perform(self, attempt: RunAttempt) -> None:
        self.started.set()
        try:
            await self.go_on.wait()
            await self._end(attempt, "completed")
        except asyncio.CancelledError:
            if not attempt.cancelled:
                raise
            await self._end(attempt, "cancelled")

    async def stop(self, attempt: RunAttempt, how: EarlyEnd) -> None:
        self.stopped.append(how)
        await self._end(attempt, "failed" if how == "lost" or how == "unreadable" else how)

    async def _end(self, attempt: RunAttempt, how: End) -> None:
        await self._database.change(self._store.ending(attempt.run.id, attempt.run.token, how))


class Node:
    """One node over a database that others may share."""

    def __init__(
        self, database: Database, name: str = "n0", crashes: int = 3, executor: RunExecutor | None = None
    ) -> None:
        self.problems: list[str] = []
        self.store = RunStore(database, name, lease_seconds=0.3)
        self.handler = WaitingHandler(database, self.store)
        terms = SchedulerOptions(look_seconds=0.01, crashes=crashes)
        self.scheduler = LeasedRunScheduler(
            self.store, executor or InProcessExecutor(), self.handler, terms, self.problems.append
        )
        self.scheduler.open()
        self._database = database

    async def queue(self, id: str = "run", begin: bool = True) -> None:
        await self._database.change(self.store.opening(id, "ann", b"{}"))
        if begin:
            self.scheduler.schedule(id)

    async def wait_until(self, check: Callable[[StoredRun], bool], id: str = "run") -> StoredRun:
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
    await node.scheduler.aclose()
    await database.aclose()
    assert node.problems == []


async def test_a_run_is_performed_to_its_end_and_its_lease_is_renewed_meanwhile() -> None:
    async with one_node() as node:
        await node.queue()
        await node.handler.started.wait()
        held = await node.wait_until(lambda run: run.state == "running")
        await node.wait_until(lambda run: run.lease > held.lease)
        node.handler.go_on.set()
        await node.wait_until(lambda run: run.state == "completed")
        assert not node.scheduler.has("run")


async def test_a_queued_run_that_was_never_scheduled_is_found_and_started() -> None:
    """fault: K-A: the process ended between accepting the run and beginning it."""
    async with one_node() as node:
        await node.queue(begin=False)
        node.handler.go_on.set()
        await node.wait_until(lambda run: run.state == "completed")


async def test_a_cancelled_run_ends_before_the_cancelling_returns() -> None:
    async with one_node() as node:
        await node.queue()
        await node.handler.started.wait()
        await node.scheduler.cancel("run")
        assert (await node.wait_until(lambda run: run.is_over)).state == "cancelled"
        await node.scheduler.cancel("run")


async def test_a_queued_run_is_cancelled_without_being_started() -> None:
    async with one_node() as node:
        await node.queue(begin=False)
        await node.scheduler.cancel("run")
        assert (await node.wait_until(lambda run: run.is_over)).state == "cancelled"
        assert not node.handler.started.is_set()


async def test_a_run_is_cancelled_on_the_node_that_has_it() -> None:
    database = Database(None)
    one, other = Node(database, "one"), Node(database, "other")
    await one.queue()
    await one.handler.started.wait()
    await other.scheduler.cancel("run")
    assert (await one.wait_until(lambda run: run.is_over)).state == "cancelled"
    assert not other.handler.started.is_set()
    for node in (one, other):
        await node.scheduler.aclose()
    await database.aclose()


async def test_a_run_that_crashed_its_node_too_often_is_parked() -> None:
    """fault: K-F"""
    database = Database(None)
    dead = RunStore(database, "dead", lease_seconds=-1)
    await database.change(dead.opening("run", "ann", b"{}"))
    for _ in range(3):
        assert await dead.claim("run") is not None
        await dead.take_abandoned()
    node = Node(database)
    await node.wait_until(lambda run: run.state == "parked")
    assert node.handler.stopped == ["parked"]
    assert not node.handler.started.is_set()
    await node.scheduler.aclose()
    await database.aclose()


async def test_a_node_that_closes_releases_its_runs_and_another_resumes_them() -> None:
    """spec: D3"""
    database = Database(None)
    one, other = Node(database, "one"), Node(database, "other")
    await one.queue()
    await one.handler.started.wait()
    other.handler.go_on.set()
    await one.scheduler.aclose()
    over = await other.wait_until(lambda run: run.is_over)
    assert (over.state, over.attempts) == ("completed", 1)
    await other.scheduler.aclose()
    await database.aclose()


async def test_a_node_that_lost_its_lease_stops_without_writing() -> None:
    """fault: M6"""
    async with one_node() as node:
        await node.queue()
        await node.handler.started.wait()
        await node._database.change(lambda db: db.execute("UPDATE runs SET token = token + 1, node = 'other'"))
        for _ in range(500):
            if not node.scheduler.has("run"):
                break
            await asyncio.sleep(0.01)
        assert (run := await node.store.load("run")) is not None
        assert run.state == "running"
        with pytest.raises(RunLeaseLost):
            await node.store.check("run", 1)


async def test_what_fails_at_every_poll_is_reported_once() -> None:
    class Away(InProcessExecutor):
        async def forget(self, ids: Sequence[str]) -> None:
            attempts.append(1)
            if len(attempts) == 3:
                third.set()
            raise GatewayOverloaded("The storage is not available.")

    attempts, third = list[int](), asyncio.Event()
    database = Database(None)
    node = Node(database, executor=Away())
    node.handler.go_on.set()
    await node.queue()
    await asyncio.wait_for(third.wait(), 30)
    await node.scheduler.aclose()
    await database.aclose()
    assert node.problems == ["The storage is not available."]
