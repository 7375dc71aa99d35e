"""The schema: made once, taken over from the first release, safe to kill, and never turned back (spec: D1; fault: R4)."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from toolgate.conversation.message import Message
from toolgate.storage import migrations
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.migrations import Migration, NewerSchema, SchemaStatus
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.streams import StreamStore

NEWEST = migrations.migrations()[-1].version


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Release further steps; the number of the last."""

    def release(*texts: str) -> int:
        more = [Migration(NEWEST + number, f"more{number}", text) for number, text in enumerate(texts, 1)]
        every = (*migrations.migrations(), *more)
        monkeypatch.setattr(migrations, "migrations", lambda: every)
        return NEWEST + len(more)

    return release


async def tables(database: Database, *names: str) -> list[bool]:
    def look(db: SqlConnection) -> list[bool]:
        return [database._engine.has_table(db, name) for name in names]

    return await database.read(look)


def test_the_steps_are_numbered_without_gaps_and_described() -> None:
    steps = migrations.migrations()
    assert [step.version for step in steps] == list(range(1, NEWEST + 1))
    assert all(step.name.isidentifier() and step.text.startswith("-- ") for step in steps)


async def test_a_new_database_has_the_newest_tables_at_the_first_use(storage_url: str) -> None:
    database = Database(storage_url)
    assert await database.status() == SchemaStatus(0, NEWEST), "looking made them"
    await database.open()
    assert await database.status() == SchemaStatus(NEWEST, NEWEST)
    assert await database.check() == []
    await database.aclose()


async def test_further_steps_are_applied_to_a_database_in_use(storage_url: str, released: Callable[..., int]) -> None:
    database = Database(storage_url)
    store = RegisteredSourceStore(database)
    await store.save("one", b"1")
    await database.aclose()
    newest = released(
        "-- a\nALTER TABLE registrations ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",
        "-- b\nUPDATE registrations SET colour = 'blue'; CREATE TABLE more (id NUMBERED, size REAL, body BLOB)",
    )
    database = Database(storage_url)
    colours = await database.read(lambda db: db.execute("SELECT name, colour FROM registrations").fetchall())
    assert colours == [("one", "blue")]
    assert await database.status() == SchemaStatus(newest, newest)
    await database.aclose()


async def test_a_step_that_fails_leaves_nothing_behind_and_is_tried_again(
    storage_url: str, released: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await _made(storage_url)
    released("-- a\nCREATE TABLE half (id TEXT PRIMARY KEY)", "-- b\nCREATE TABLE whole (id TEXT, nonsense")
    database = Database(storage_url)
    for _ in range(2):
        with pytest.raises(Exception, match=r"syntax error|incomplete input|nonsense"):
            await database.open()
    await database.aclose()
    monkeypatch.undo()
    database = Database(storage_url)
    assert await tables(database, "half", "whole", "responses") == [False, False, True]
    await database.aclose()


DIE = """
import asyncio, os, signal, sys
from toolgate.storage import migrations
from toolgate.storage.database import Database
every = (*migrations.migrations(), migrations.Migration(int(sys.argv[2]), "more", sys.argv[3]))
migrations.migrations = lambda: every
left = int(sys.argv[4])
create = migrations._create
class Dying:
    def __init__(self, db): self.db = db
    def execute(self, *given):
        global left
        left -= 1
        if left < 0: os.kill(os.getpid(), signal.SIGKILL)
        return self.db.execute(*given)
migrations._create = lambda db, text, words: create(Dying(db), text, words)
asyncio.run(Database(sys.argv[1]).open())
"""


@pytest.mark.parametrize("after", [1, 2])
async def test_a_process_that_is_killed_in_a_step_has_not_begun_it(storage_url: str, after: int) -> None:
    """fault: K-A"""
    await _made(storage_url)
    text = "-- a\nCREATE TABLE one (id TEXT); CREATE TABLE two (id TEXT); CREATE TABLE three (id TEXT)"
    arguments = [sys.executable, "-c", DIE, storage_url, str(NEWEST + 1), text, str(after)]
    died = await asyncio.to_thread(subprocess.run, arguments, timeout=60, check=False)
    assert died.returncode == -9
    database = Database(storage_url)
    assert await tables(database, "one", "two", "three") == [False, False, False]
    assert await database.status() == SchemaStatus(NEWEST, NEWEST)
    await database.aclose()


async def test_nodes_that_start_together_make_the_tables_once(storage_url: str) -> None:
    databases = [Database(storage_url) for _ in range(6)]
    await asyncio.gather(*[database.open() for database in databases])
    versions = await databases[0].read(lambda db: db.execute("SELECT version FROM schema_versions").fetchall())
    assert sorted(versions) == [(number,) for number in range(1, NEWEST + 1)]
    for database in databases:
        await database.aclose()


async def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(storage_url: str) -> None:
    database = Database(storage_url)
    future = (NEWEST + 1, "future", 1.0)
    await database.change(lambda db: db.execute("INSERT INTO schema_versions VALUES (?, ?, ?)", future))
    await database.aclose()
    database = Database(storage_url)
    with pytest.raises(NewerSchema, match=f"version {NEWEST + 1} .* knows {NEWEST}"):
        await database.change(lambda db: db.execute("DELETE FROM schema_versions"))
    assert await database.status() == SchemaStatus(NEWEST + 1, NEWEST)
    await database.aclose()


async def _made(url: str) -> None:
    database = Database(url)
    await database.open()
    await database.aclose()


async def test_a_file_of_the_first_release_is_taken_over_as_it_is(tmp_path: Path) -> None:
    """Its tables have no version, and some of them no rowid."""
    old = sqlite3.connect(tmp_path / "a.db")
    old.executescript(Path(__file__).with_name("first_release.sql").read_text())
    old.commit()
    old.close()
    database = Database(tmp_path / "a.db")
    responses = ResponseStore(database)
    kept = await responses.load("ann", "resp_1")
    assert kept == StoredResponse("resp_1", "ann", None, 7, [], {"output": [{"id": "msg_1"}]})
    assert await responses.item("ann", "msg_1") == {"id": "msg_1"}
    assert await RegisteredSourceStore(database).all() == [("tool", b"{}")]
    rounds = HiddenTurnStore(database)
    await rounds.start("ann", "k", "call_2")
    found = await rounds.find("ann", ["k"], within=1e12)
    assert found["k"].started == {"call_1", "call_2"}
    assert found["k"].messages == msgspec.json.decode(b"[]", type=tuple[Message, ...])
    stream = await StreamStore(database).load("resp_1")
    assert stream is not None
    assert stream.kept
    assert await database.status() == SchemaStatus(NEWEST, NEWEST)
    await database.aclose()
