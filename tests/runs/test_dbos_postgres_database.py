"""After an outage of PostgreSQL, steps are written again soon, however long it was away."""

import asyncio
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from dbos._utils import retriable_postgres_exception

from tests.chaos.proxy import spoilt
from tests.chaos.test_lines import socket_of
from tests.databases import Postgres
from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.dbos_postgres_database import RETRY_SECONDS, DbosPostgresDatabase, ExecutorStopped
from toolgate.runs.step_records import DurableStepLog

OUTAGE_SECONDS = 20
RECOVERY_SECONDS = 10


async def test_a_step_is_written_within_seconds_after_an_outage(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec: D3: the pauses are counted, and none is waited for."""
    import dbos._sys_db

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(0.001)

    monkeypatch.setattr(dbos._sys_db, "time", SimpleNamespace(**{**vars(time), "sleep": pause}))
    first, away, written = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(id: str, steps: DurableStepLog) -> None:
        await steps.keep("step", "1")
        first.set()
        await away.wait()
        await steps.keep("step", "2")
        written.set()

    with postgres.database() as address:
        async with spoilt(socket_of(address)) as line:
            url = f"postgresql://postgres@127.0.0.1:{line.port}/{urlsplit(address).path.lstrip('/')}"
            executor = DbosExecutor(url, "n", print, retry_seconds=0.001)
            await executor.open(work)
            await executor.begin("run")
            await asyncio.wait_for(first.wait(), 30)
            line.refusing = True
            line.cut()
            away.set()
            async with asyncio.timeout(60):
                # Several connections wait for the database, and each tries once in a second of the outage.
                await line.refused(10 * OUTAGE_SECONDS)
            assert not written.is_set()
            line.refusing = False
            await asyncio.wait_for(written.wait(), 30)
            longest = max(pauses, default=0.0)  # not of threads that outlive the executor and find no database
            await executor.aclose()
    assert longest + RETRY_SECONDS <= RECOVERY_SECONDS


def test_nothing_waits_for_the_database_once_the_server_stops() -> None:
    """DBOS tries errors of a database again for ever, in a thread that the end of the process waits for."""
    database = DbosPostgresDatabase("postgresql://127.0.0.1:1/none", retry_seconds=3600)
    database.mark_ready()
    database.stop()
    with pytest.raises(ExecutorStopped) as caught:
        database.engine.connect()
    assert not retriable_postgres_exception(caught.value)
    database.close()


def test_closing_closes_connections_that_are_in_use_as_well(postgres: Postgres) -> None:
    """Threads of DBOS may outlive it, and a pool that is disposed does not close what they return to it later."""
    with postgres.database() as address:
        database = DbosPostgresDatabase(address)
        used = database.engine.raw_connection()
        connection = used.dbapi_connection
        database.close()
        assert connection is not None
        assert connection.closed
        with pytest.raises(ExecutorStopped):
            database.engine.connect()
