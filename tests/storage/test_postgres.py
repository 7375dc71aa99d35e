"""PostgreSQL: what is lost, what comes back, and who wins (faults: K-K, M)."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.databases import Postgres, running_postgres
from tests.storage.faultwire import FaultWire, fault_wire
from toolgate.api.records.write_queue import WriteQueue, WriteQueueLimits
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.database import CommitUncertain, Database, DuplicateRow, SqlConnection
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics

PERIOD = "2026-11"


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        yield address


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url, connections=3)
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture
def wire(url: str) -> Iterator[FaultWire]:
    server = Path(parse_qs(urlsplit(url).query)["host"][0])
    with tempfile.TemporaryDirectory(prefix="tg-wire-") as folder, fault_wire(Path(folder) / "w", server) as opened:
        yield opened


def through(wire: FaultWire, url: str) -> str:
    return f"{url.partition('?')[0]}?host={wire.folder}"


def spend(db: SqlConnection) -> None:
    db.execute("INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)", ("ann", PERIOD, 1.0))


async def spent(database: Database) -> list[tuple[str, float]]:
    return await database.read(lambda db: db.execute("SELECT key, amount FROM spending ORDER BY key").fetchall())


async def test_a_connection_that_the_server_ended_is_replaced_unnoticed(database: Database, postgres: Postgres) -> None:
    """fault: K-K, pg_terminate_backend between two requests"""
    await asyncio.gather(*[database.read(lambda db: db.execute("SELECT pg_sleep(0.05)").fetchall()) for _ in range(3)])
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname LIKE 'test_%'"
    assert len(postgres.run(ended)) == 3
    await database.change(spend)
    assert await spent(database) == [("ann", 1.0)]


async def test_a_connection_that_is_ended_in_the_middle_of_a_change_changes_nothing(database: Database) -> None:
    """fault: K-K"""
    runs = 0

    def work(db: SqlConnection) -> None:
        nonlocal runs
        runs += 1
        spend(db)
        if runs == 1:
            db.execute("SELECT pg_terminate_backend(pg_backend_pid())").fetchall()

    with pytest.raises(GatewayOverloaded) as caught:
        await database.change(work)
    assert (caught.value.code, caught.value.status) == ("storage_unavailable", 503)
    assert caught.value.retry_after
    assert runs == 1, "what may have been done is not done again"
    assert await spent(database) == []
    await database.change(work)
    assert await spent(database) == [("ann", 1.0)]


async def test_a_commit_whose_answer_is_lost_is_known_to_be_made(url: str, wire: FaultWire) -> None:
    """fault: K-K, COMMIT answer lost"""
    database = Database(through(wire, url))
    await database.open()
    runs: list[int] = []

    def spend_once(db: SqlConnection) -> None:
        runs.append(1)
        spend(db)

    wire.lose_the_answer_to(b"COMMIT")
    await database.change(spend_once)
    assert await asyncio.to_thread(wire.lost.wait, 5), "nothing was lost"
    assert (len(runs), await spent(database)) == (1, [("ann", 1.0)])
    await database.aclose()


async def test_a_commit_that_never_arrived_is_known_not_to_be_made(
    url: str, wire: FaultWire, postgres: Postgres
) -> None:
    """fault: K-K"""
    database = Database(through(wire, url))
    await database.open()

    def work(db: SqlConnection) -> None:
        spend(db)
        wire.cut()

    with pytest.raises(GatewayOverloaded) as caught:
        await database.change(work)
    assert not isinstance(caught.value, CommitUncertain)
    assert await spent(database) == []
    await database.aclose()


async def test_spending_is_counted_once_after_an_uncertain_commit(url: str, wire: FaultWire) -> None:
    """fault: K-K, no double append"""
    database = Database(through(wire, url), timeout=0.5)
    store = SpendingStore(database)
    await database.open()
    wire.lose_the_answer_to(b"COMMIT", and_stay_away=True)
    with pytest.raises(CommitUncertain):
        await store.add({("ann", PERIOD): 1.0})
    with pytest.raises(GatewayOverloaded):
        await store.add({("ann", PERIOD): 1.5})
    wire.come_back()
    await _until(lambda: store.add({("ann", PERIOD): 1.5}))
    assert await store.sums([PERIOD]) == {("ann", PERIOD): 1.5}
    assert await store.add({("ann", PERIOD): 1.0}) == {("ann", PERIOD): 2.5}
    await database.aclose()


async def test_records_are_written_once_after_an_uncertain_commit(
    url: str, wire: FaultWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: K-K, no double append"""
    database = Database(through(wire, url), timeout=0.3)
    await database.open()
    writer = WriteQueue(database, Logger("error"), Metrics(), WriteQueueLimits(linger=0.0, retry=0.05))
    add = "INSERT INTO spending (key, period, amount) VALUES ('n', '', 1) ON CONFLICT (key, period) DO UPDATE"
    runs: list[int] = []
    wire.lose_the_answer_to(b"COMMIT", and_stay_away=True)

    def add_one(db: SqlConnection) -> None:
        runs.append(1)
        db.execute(add + " SET amount = spending.amount + 1")

    writer.put("ann", "sum", add_one)
    asked, was_committed = asyncio.Event(), database.was_committed

    async def noticed(unsettled: CommitUncertain) -> bool:
        asked.set()
        return await was_committed(unsettled)

    monkeypatch.setattr(database, "was_committed", noticed)
    async with asyncio.timeout(30):
        await asked.wait()
    wire.come_back()
    await writer.aclose(5)
    assert (runs, await spent(database)) == ([1], [("n", 1.0)])
    await database.aclose()


async def test_a_database_server_that_does_not_answer_times_out(url: str) -> None:
    """fault: K-K, a stopped server: the kernel still takes what is sent"""
    database = Database(url, timeout=0.3)
    [process] = await database.read(lambda db: db.execute("SELECT pg_backend_pid()").fetchone())
    os.kill(process, signal.SIGSTOP)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(GatewayOverloaded):
                await database.change(spend)
    finally:
        os.kill(process, signal.SIGCONT)
    await database.change(spend)
    await database.aclose()


async def test_waiting_for_a_lock_or_a_connection_fails_in_time(url: str) -> None:
    """fault: K-K, lock wait and pool exhausted"""
    database = Database(url, connections=2, timeout=0.3)
    await database.change(spend)
    add = "UPDATE spending SET amount = amount + 1"
    with psycopg.connect(url) as holder:
        holder.execute("SELECT * FROM spending FOR UPDATE")
        async with asyncio.timeout(30):
            emitted = await asyncio.gather(
                *[database.change(lambda db: db.execute(add)) for _ in range(8)], return_exceptions=True
            )
    assert {type(one) for one in emitted} == {GatewayOverloaded}
    assert "The storage is not available: too many requests wait for it." in {str(one) for one in emitted}
    assert await spent(database) == [("ann", 1.0)]
    await database.aclose()


async def test_a_key_that_is_there_already_is_a_duplicate(database: Database) -> None:
    await database.change(spend)
    with pytest.raises(DuplicateRow):
        await database.change(spend)


async def test_a_killed_server_is_unavailable_and_found_again() -> None:
    """fault: K-K, kill -9 of postgres and a restart"""
    with running_postgres() as server, server.database() as url:
        database = Database(url)
        await database.change(spend)
        await asyncio.to_thread(server.kill)
        for _ in range(3):
            with pytest.raises(GatewayOverloaded) as caught:
                await database.change(lambda db: db.execute("DELETE FROM spending"))
            assert "/" not in str(caught.value), "it speaks of addresses"
        await asyncio.to_thread(server.start)
        await _until(lambda: database.change(lambda db: db.execute("UPDATE spending SET amount = amount + 1")))
        assert await spent(database) == [("ann", 2.0)]
        await database.aclose()


async def _until(attempt: Callable[[], Awaitable[object]]) -> None:
    """Try again until it goes well."""
    async with asyncio.timeout(30):
        while True:
            with suppress(GatewayOverloaded):
                await attempt()
                return
            await asyncio.sleep(0.05)
