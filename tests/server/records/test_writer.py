"""Records are written behind the answers: together, in order, never in anybody's way, and what is lost is counted (D2)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolgate.conversation.errors import Overloaded
from toolgate.server.records.writer import Room, Writer
from toolgate.storage.database import Connection, Database
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redact import Redactor
from toolgate.telemetry.traced import Traced


class Flaky(Database):
    """A database that can be away, counts transactions, and says when one was begun."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = False
        self.changes = 0
        self.tried = asyncio.Event()

    async def change(self, work: Callable[[Connection], Any]) -> Any:
        self.changes += 1
        self.tried.set()
        if self.away:
            raise Overloaded("The storage is not available.")
        return await super().change(work)


class Notes:
    """A table of numbers behind a writer."""

    def __init__(self, database: Flaky, **room: Any) -> None:
        self.traced = Traced(Log("error", "json", Redactor(())), Metrics())
        self.database = database
        self.writer = Writer(database, self.traced, Room(**{"linger": 0.0, "retry": 0.01, **room}))

    def put(self, *numbers: int, size: int = 0) -> None:
        for number in numbers:
            self.writer.put("note", self._adding(number), size)

    async def kept(self) -> list[int]:
        rows = await self.database.do(lambda db: db.execute("SELECT n FROM notes ORDER BY place").fetchall())
        return [row[0] for row in rows]

    def lost(self) -> int:
        lines = self.traced.render().decode().splitlines()
        return sum([int(line.split()[-1]) for line in lines if line.startswith("toolgate_records_lost_total{")])

    def _adding(self, number: int) -> Callable[[Connection], object]:
        def write(db: Connection) -> object:
            if number < 0:
                raise ValueError("a bad record")
            return db.execute("INSERT INTO notes (n) VALUES (?)", (number,))

        return write


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Flaky]:
    database = Flaky(tmp_path / "notes.db")
    await database.do(lambda db: db.execute("CREATE TABLE notes (place INTEGER PRIMARY KEY, n INTEGER)"))
    yield database
    await database.aclose()


async def test_what_is_put_is_written_together_and_in_order(database: Flaky) -> None:
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


async def test_what_finds_no_room_is_lost_and_counted(database: Flaky) -> None:
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


async def test_a_bad_record_takes_no_other_with_it(database: Flaky, capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes(database)
    notes.put(1, -1, 2)
    await notes.writer.flush()
    assert await notes.kept() == [1, 2]
    assert notes.lost() == 1


async def test_at_the_end_everything_is_written(database: Flaky) -> None:
    notes = Notes(database, linger=60.0, at_once=10)
    notes.put(*range(95))
    await notes.writer.aclose()
    assert await notes.kept() == list(range(95))


async def test_the_end_does_not_wait_for_a_database_that_stays_away(database: Flaky) -> None:
    notes = Notes(database, at_once=2)
    database.away = True
    notes.put(1, 2, 3)
    await notes.writer.aclose(seconds=0.05)
    assert notes.lost() == 3
