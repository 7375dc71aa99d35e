"""Records are written after the responses: together, in order, without delay for clients, losses counted (spec: D2)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolgate.api.records.write_queue import WriteQueue, WriteQueueLimits
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.database import Database, SqlConnection
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redaction import Redactor


class Flaky(Database):
    """A database that can be away, counts transactions, and says when one was begun."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = False
        self.changes = 0
        self.tried = asyncio.Event()

    async def change(self, work: Callable[[SqlConnection], Any]) -> Any:
        self.changes += 1
        self.tried.set()
        if self.away:
            raise GatewayOverloaded("The storage is not available.")
        return await super().change(work)


class Notes:
    """A table of numbers behind a writer."""

    def __init__(self, database: Flaky, **room: Any) -> None:
        self.log, self.metrics = Logger("error", "json", Redactor(())), Metrics()
        self.database = database
        self.writer = WriteQueue(
            database, self.log, self.metrics, WriteQueueLimits(**{"linger": 0.0, "retry": 0.01, **room})
        )

    def put(self, *numbers: int, size: int = 0, owner: str = "ann") -> None:
        for number in numbers:
            self.writer.put(owner, "note", self._adding(number), size)

    async def kept(self) -> list[int]:
        rows = await self.database.read(lambda db: db.execute("SELECT n FROM notes ORDER BY place").fetchall())
        return [row[0] for row in rows]

    def lost(self) -> int:
        lines = self.metrics.render().decode().splitlines()
        return sum([int(line.split()[-1]) for line in lines if line.startswith("toolgate_records_lost_total{")])

    def _adding(self, number: int) -> Callable[[SqlConnection], object]:
        def write(db: SqlConnection) -> object:
            if number < 0:
                raise ValueError("a bad record")
            return db.execute("INSERT INTO notes (n) VALUES (?)", (number,))

        return write


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Flaky]:
    database = Flaky(tmp_path / "notes.db")
    await database.read(lambda db: db.execute("CREATE TABLE notes (place INTEGER PRIMARY KEY, n INTEGER)"))
    yield database
    await database.aclose()


async def test_queued_records_are_written_together_and_in_order(database: Flaky) -> None:
    notes = Notes(database, linger=60.0)
    notes.put(*range(50))
    assert database.changes == 0, "whoever puts a record does not wait for the database"
    await notes.writer.flush()
    assert await notes.kept() == list(range(50))
    assert database.changes == 1


async def test_a_database_that_is_away_is_waited_for(database: Flaky) -> None:
    notes = Notes(database)
    database.away = True
    notes.put(1, 2)
    await database.tried.wait()
    notes.put(3)
    database.away = False
    await notes.writer.flush()
    assert await notes.kept() == [1, 2, 3]
    assert notes.lost() == 0


async def test_records_beyond_the_limit_are_lost_and_counted(database: Flaky) -> None:
    notes = Notes(database, most=3, most_bytes=100)
    notes.put(*range(5))
    await notes.writer.flush()
    notes.put(10, size=60)
    notes.put(11, size=60)
    await notes.writer.flush()
    notes.put(12, size=60)
    await notes.writer.flush()
    assert await notes.kept() == [0, 1, 2, 10, 12]
    assert notes.lost() == 3


@pytest.mark.parametrize("size", [0, 40])
async def test_an_owner_who_fills_the_queue_loses_its_own_records_only(database: Flaky, size: int) -> None:
    """In number, or in bytes. Two owners who fill it have equal shares."""
    notes = Notes(database, **({"most_bytes": 400} if size else {"most": 10}))
    notes.put(*range(30), size=size, owner="flood")
    notes.put(100, 101, size=size, owner="ann")
    notes.put(*range(200, 230), size=size, owner="bob")
    notes.put(102, size=size, owner="ann")
    await notes.writer.flush()
    kept = await notes.kept()
    assert [number for number in kept if 100 <= number < 200] == [100, 101, 102]
    assert kept[:3] == [0, 100, 200], "owners take turns"
    assert sorted([number for number in kept if not 100 <= number < 200]) == [0, 1, 2, 200, 201, 202, 203]
    assert notes.lost() == 63 - len(kept)


async def test_the_first_lost_record_of_every_kind_is_logged(
    database: Flaky, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = WriteQueue(database, Logger("warning", "json", Redactor(())), Metrics())
    for kind in ("run", "run", "usage", "run"):
        writer.lose(kind, "too much waits to be written")
    lost = [line for line in capfd.readouterr().err.splitlines() if "records are lost" in line]
    assert ["usage" in line for line in lost] == [False, True]


async def test_a_bad_record_takes_no_other_with_it(database: Flaky, capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes(database)
    notes.put(1, -1, 2)
    await notes.writer.flush()
    assert await notes.kept() == [1, 2]
    assert notes.lost() == 1


async def test_closing_writes_everything(database: Flaky) -> None:
    notes = Notes(database, linger=60.0, at_once=10)
    notes.put(*range(95))
    await notes.writer.aclose()
    assert await notes.kept() == list(range(95))


async def test_closing_does_not_wait_for_a_database_that_stays_away(database: Flaky) -> None:
    notes = Notes(database, at_once=2)
    database.away = True
    notes.put(1, 2, 3)
    await notes.writer.aclose(seconds=0.05)
    assert notes.lost() == 3
