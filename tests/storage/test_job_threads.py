"""Changes that wait while a disk syncs are committed together, and each of them still ends as if it were alone."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage import job_threads
from toolgate.storage.database import CommitUncertain, Database, DuplicateRow, SlowJobStats, SqlConnection

ADD = "INSERT INTO spending (key, period, amount) VALUES (?, '', 1.0)"
PATIENCE = 60


def adding(key: str) -> Callable[[SqlConnection], str]:
    def work(db: SqlConnection) -> str:
        db.execute(ADD, (key,))
        return key

    return work


def keys(db: SqlConnection) -> list[str]:
    return [row[0] for row in db.execute("SELECT key FROM spending ORDER BY key").fetchall()]


@pytest.fixture
async def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """One whose last sync took so long that everything which waits fits into the next transaction."""
    opened = Database(tmp_path / "a.db")
    await opened.open()
    monkeypatch.setattr(opened._engine, "_sync_seconds", 3600.0)
    yield opened
    await opened.aclose()


@asynccontextmanager
async def held(database: Database) -> AsyncIterator[None]:
    """Keep the thread busy, as a disk does that does not answer."""
    begun, go = threading.Event(), threading.Event()

    def wait(_: SqlConnection) -> None:
        begun.set()
        go.wait(PATIENCE)

    holding = asyncio.ensure_future(database.read(wait))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    try:
        yield
    finally:
        go.set()
        await holding


async def ended_together(database: Database, *jobs: Awaitable[Any]) -> list[Any]:
    """What jobs return or raise that all come while the thread is busy."""
    async with held(database):
        tasks = [asyncio.ensure_future(job) for job in jobs]
        await asyncio.sleep(0)
        assert database._jobs._queue.size == len(jobs)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_changes_that_wait_are_committed_together(database: Database) -> None:
    statements: list[str] = []
    await database.read(lambda db: db.set_trace_callback(statements.append))  # type: ignore[attr-defined]
    jobs = [database.change(adding(f"k{number:02}")) for number in range(20)]
    seen = await ended_together(database, *jobs, database.read(keys))
    assert seen[:-1] == seen[-1] == [f"k{number:02}" for number in range(20)]
    assert statements.count("COMMIT") == 1


async def test_a_change_on_a_fast_disk_does_not_wait_for_those_behind_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database._engine, "_sync_seconds", 0.0)
    statements: list[str] = []

    def forget_syncs(statement: str) -> None:
        statements.append(statement)
        monkeypatch.setattr(database._engine, "_sync_seconds", 0.0)

    await database.read(lambda db: db.set_trace_callback(forget_syncs))  # type: ignore[attr-defined]
    await ended_together(database, *[database.change(adding(f"k{number}")) for number in range(5)])
    assert statements.count("COMMIT") == 5


async def test_changes_that_fail_leave_nothing_and_harm_none_that_share_their_transaction(database: Database) -> None:
    def stumble(db: SqlConnection) -> None:
        db.execute(ADD, ("lost",))
        raise KeyError("ours")

    seen = await ended_together(
        database,
        database.change(adding("a")),
        database.change(stumble),
        database.change(adding("a")),
        database.read(keys),
        database.change(adding("b")),
    )
    assert [type(one) for one in seen] == [str, KeyError, DuplicateRow, list, str]
    assert seen[3] == ["a"]
    assert await database.read(keys) == ["a", "b"]


async def test_the_first_of_several_changes_may_fail(database: Database) -> None:
    await database.change(adding("a"))

    def stumble(db: SqlConnection) -> None:
        db.execute(ADD, ("lost",))
        db.execute(ADD, ("a",))

    seen = await ended_together(database, database.change(stumble), database.change(adding("b")))
    assert isinstance(seen[0], DuplicateRow)
    assert seen[1] == "b"
    assert await database.read(keys) == ["a", "b"]


@pytest.mark.parametrize("problem", ["full", "wrong"])
async def test_a_change_that_ends_the_transaction_fails_alone(database: Database, problem: str) -> None:
    def fail(db: SqlConnection) -> None:
        db.execute(ADD, ("x" * 5_000_000 if problem == "full" else "lost",))
        db.execute("INSERT INTO no_such_table VALUES (1)")

    await database.read(lambda db: db.execute("PRAGMA max_page_count = 1000").fetchall())
    seen = await ended_together(
        database, database.change(adding("a")), database.change(fail), database.change(adding("b"))
    )
    assert seen[::2] == ["a", "b"]
    assert isinstance(seen[1], GatewayOverloaded if problem == "full" else sqlite3.OperationalError)
    assert await database.read(keys) == ["a", "b"]


async def test_a_commit_that_fails_fails_every_change_in_it(tmp_path: Path, database: Database) -> None:
    """What one of them has seen of another may not be reported when neither is stored."""

    def deny(statement: str) -> None:
        if statement == "COMMIT":
            (tmp_path / "a.db").rename(tmp_path / "b.db")  # each alone then fails, too

    def defer(db: SqlConnection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS p (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE IF NOT EXISTS c (p INTEGER REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)")
        db.execute("INSERT INTO c VALUES (7)")  # which the commit finds to be missing in p

    await database.read(lambda db: db.execute("PRAGMA foreign_keys = 1").fetchall())
    await database.read(lambda db: db.set_trace_callback(deny))  # type: ignore[attr-defined]
    seen = await ended_together(
        database, database.change(adding("a")), database.change(adding("a")), database.change(defer)
    )
    assert [type(one) for one in seen] == [GatewayOverloaded] * 3
    (tmp_path / "b.db").rename(tmp_path / "a.db")
    assert await database.read(keys) == []


async def test_work_of_a_task_that_was_cancelled_still_counts_as_running(tmp_path: Path) -> None:
    """Whoever comes next waits for the thread in the queue, where the time to wait is limited."""
    database = Database(tmp_path / "a.db", timeout=0.02)
    await database.open()
    begun, go = threading.Event(), threading.Event()

    def wait(_: SqlConnection) -> None:
        begun.set()
        go.wait(PATIENCE)

    holding = asyncio.ensure_future(database.read(wait))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    holding.cancel()
    await asyncio.wait({holding})
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):  # the second fails at once
            with pytest.raises(GatewayOverloaded, match="it has not answered for") as caught:
                await database.change(adding("a"))
            assert (caught.value.code, bool(caught.value.retry_after)) == ("storage_unavailable", True)
    go.set()
    async with asyncio.timeout(PATIENCE):
        while "b" not in await asyncio.gather(database.change(adding("b")), return_exceptions=True):  # noqa: ASYNC110
            await asyncio.sleep(0)  # nothing tells that the thread is free
    assert await database.read(keys) == ["b"]
    await database.aclose()


@pytest.mark.parametrize("ends_well", [True, False])
async def test_a_change_that_does_not_end_is_uncertain_until_it_does(
    tmp_path: Path, ends_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever adds to a sum learns later whether it was added, so that it is counted once."""
    database = Database(tmp_path / "a.db", timeout=0.02)
    await database.open()
    monkeypatch.setattr(job_threads, "END_SECONDS", 0.2)
    go = threading.Event()

    def hang(db: SqlConnection) -> None:
        db.execute(ADD, ("a",))
        go.wait(PATIENCE)
        if not ends_well:
            raise KeyError("ours")

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CommitUncertain, match="it is not known whether the last change was made") as caught:
            await database.change(hang)
        with pytest.raises(GatewayOverloaded, match="still being made"):
            await database.was_committed(caught.value)
        with pytest.raises(GatewayOverloaded, match="it has not answered for"):
            await database.read(keys)
        monkeypatch.undo()
        go.set()
        while None not in await asyncio.gather(database.open(), return_exceptions=True):  # noqa: ASYNC110
            await asyncio.sleep(0)  # nothing tells that the thread is free
        assert await database.was_committed(caught.value) is ends_well
    assert await database.read(keys) == (["a"] if ends_well else [])
    await database.aclose()


async def test_a_read_that_does_not_end_fails_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "a.db", timeout=0.02)
    await database.open()
    monkeypatch.setattr(job_threads, "END_SECONDS", 0.2)
    go = threading.Event()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(GatewayOverloaded, match="it has not answered for"):
            await database.read(lambda _: go.wait(PATIENCE))
    go.set()
    await database.aclose()


async def test_a_cancelled_change_that_waits_is_not_made(database: Database) -> None:
    async with held(database):
        waiting = [asyncio.ensure_future(database.change(adding(key))) for key in ("a", "b")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait({waiting[0]})
    assert await waiting[1] == "b"
    assert await database.read(keys) == ["b"]


async def test_jobs_that_take_long_are_reported_with_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SlowJobStats] = []
    database = Database(tmp_path / "a.db", observe=seen.append)
    await database.open()
    async with held(database):
        tasks = [asyncio.ensure_future(database.read(keys)) for _ in range(3)]
        await asyncio.sleep(0)
        monkeypatch.setattr(job_threads, "SLOW_SECONDS", 0.0)
    await asyncio.gather(*tasks)
    assert [(slow.jobs, slow.waiting) for slow in seen[:2]] == [(("held",), 3), (("keys",), 2)]
    await database.change(adding("a"))
    assert (seen[-1].jobs, seen[-1].waiting) == (("adding",), 0)
    assert 0 < seen[-1].commit_seconds <= seen[-1].seconds
    await database.aclose()
