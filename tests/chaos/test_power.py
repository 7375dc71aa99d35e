"""The power is cut right after something was acknowledged: it is on the disk, and the files are in order (fault: K-J)."""

import asyncio
import random
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.chaos.disk import Image, count, image, log_of, ruins, unsynced
from tests.runs.processes import WANTS, Server, calling, server, until
from tests.storage.test_approvals import approved, question
from toolgate.approvals.record import Approval, StandingApproval
from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.dbos_sqlite_database import DbosSqliteDatabase
from toolgate.runs.step_records import DurableStepLog
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.conversations import ConversationStore, StoredConversation
from toolgate.storage.database import Database
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.idempotency import IdempotencyStore, StoredIdempotentAnswer
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.runs import RunStore

ALLOWED = {"approvals": {"default": "allow"}, "python": ["tools"]}
STEPS = "SELECT count(*) FROM operation_outputs WHERE workflow_uuid = ?"


@pytest.fixture
def visible_dirty_pages(tmp_path: Path) -> None:
    """Only where the kernel tells what is not on the disk yet."""
    path = tmp_path / "probe"
    with closing(sqlite3.connect(path, isolation_level=None)) as lax:
        lax.execute("PRAGMA journal_mode = WAL")
        lax.execute("PRAGMA synchronous = NORMAL")
        lax.execute("CREATE TABLE t (a)")
        if not unsynced(log_of(path)):
            pytest.skip("this kernel or this file system does not tell what is on the disk")


async def deeds(database: Database) -> AsyncIterator[tuple[str, str]]:
    """Writes of every kind that somebody relies on; each is told once it is acknowledged, as what can be counted."""
    conversations, approvals = ConversationStore(database), ApprovalStore(database, Approval, StandingApproval)
    idempotency, rounds = IdempotencyStore(database), HiddenTurnStore(database)
    await conversations.create(StoredConversation("c", "ann", 1, {}), [])
    yield "SELECT count(*) FROM conversations WHERE id = ?", "c"
    await conversations.append("ann", "c", [{"id": "item", "text": "x" * 5000}])
    yield "SELECT count(*) FROM conversation_items WHERE id = ?", "item"
    await ResponseStore(database).save(StoredResponse("resp", "ann", None, 1, [], {"id": "resp"}))
    yield "SELECT count(*) FROM responses WHERE id = ?", "resp"
    asked = await approvals.claim(question("asked"), 20, 1000.0)
    yield "SELECT count(*) FROM approvals WHERE id = ?", "asked"
    assert asked is not None
    assert await approvals.answer(approved(asked), None, 1000.0)
    yield "SELECT count(*) FROM approvals WHERE state = 'approved' AND id = ?", "asked"
    assert await KeyStore(database).create(StoredKey("key", "k", "ann", "d", "s", "{}", 1))
    yield "SELECT count(*) FROM api_keys WHERE id = ?", "key"
    await idempotency.claim("ann", "claimed", b"d", "n", b"s")
    yield "SELECT count(*) FROM idempotency WHERE key = ?", "claimed"
    await idempotency.keep("ann", "claimed", "n", StoredIdempotentAnswer(200, [], b"x" * 9000), b"s")
    yield "SELECT count(*) FROM idempotency WHERE answer IS NOT NULL AND key = ?", "claimed"
    await rounds.keep("ann", ["round"], [])
    await rounds.start("ann", "round", "call_1")
    yield "SELECT count(*) FROM turn_parts WHERE CAST(started AS TEXT) LIKE ?", "%call_1%"
    runs = RunStore(database, "n")
    await database.change(runs.opening("run", "ann", b"{}"))
    yield "SELECT count(*) FROM runs WHERE id = ?", "run"
    await runs.claim("run")
    yield "SELECT count(*) FROM runs WHERE state = 'running' AND id = ?", "run"


async def test_what_is_acknowledged_is_on_the_disk(tmp_path: Path, visible_dirty_pages: None) -> None:
    """fault: K-J: nothing of the file or its log is in the memory alone when a write returns."""
    database, path = Database(tmp_path / "t.db"), tmp_path / "t.db"
    left = [(what, unsynced(path), unsynced(log_of(path))) async for what, _ in deeds(database)]
    await database.aclose()
    assert [one for one in left if one[1:] != (0, 0)] == []
    assert len(left) == 11


async def test_a_step_of_a_run_is_on_the_disk_when_it_is_kept(tmp_path: Path, visible_dirty_pages: None) -> None:
    """fault: K-J: what a run has done is known before anybody builds on it."""
    path, done = tmp_path / "steps.db", asyncio.Event()
    left: list[int | None] = []

    async def work(id: str, steps: DurableStepLog) -> None:
        for number in range(5):
            await steps.keep("step", f"{number}" * 3000)
            left.append(unsynced(log_of(path)))
        done.set()

    workflows = DbosExecutor(f"sqlite:///{path}", "n", print)
    await workflows.open(work)
    await workflows.begin("run")
    await asyncio.wait_for(done.wait(), 30)
    await workflows.aclose()
    assert left == [0] * 5


def test_steps_are_written_as_ours_are_whatever_sqlite_was_built_to_do(tmp_path: Path) -> None:
    """fault: K-J"""
    steps = DbosSqliteDatabase(f"sqlite:///{tmp_path / 'steps.db'}")
    steps.mark_ready()
    with steps.engine.connect() as connection:
        output = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("synchronous", "journal_mode")]
    steps.close()
    assert output == [2, "wal"]


async def test_our_connection_syncs_every_commit(tmp_path: Path) -> None:
    """fault: K-J"""
    database = Database(tmp_path / "t.db")
    output = [
        await database.read(lambda db, name=name: db.execute(f"PRAGMA {name}").fetchone()[0])  # type: ignore[misc]
        for name in ("synchronous", "journal_mode")
    ]
    await database.aclose()
    assert output == [2, "wal"]


async def test_a_cut_after_any_acknowledgement_leaves_all_that_was_acknowledged(tmp_path: Path) -> None:
    """fault: K-J: with a log that ends in rubbish and a file into which the log was half copied, too."""
    path, chance = tmp_path / "t.db", random.Random(1)
    database = Database(path)
    emitted: list[tuple[str, str]] = []
    shots: list[tuple[int, Image]] = []
    async for deed in deeds(database):
        emitted.append(deed)
        shots.append((len(emitted), image(path)))
    await database.aclose()
    for known, shot in shots:
        for left in ruins(shot, chance):
            are_there(left.lay(tmp_path / "left"), emitted[:known])


async def test_a_cut_in_the_middle_of_the_next_write_leaves_all_that_was_acknowledged(tmp_path: Path) -> None:
    """fault: K-J: the log is cut behind every frame that was written since."""
    path = tmp_path / "t.db"
    database = Database(path)
    emitted = [deed async for deed in deeds(database)]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA cache_size = 2")  # so that it writes to the log before it commits
        other.execute("BEGIN IMMEDIATE")
        rows = [("c", place, f"late{place}", b"x" * 3000) for place in range(100, 120)]
        other.executemany("INSERT INTO conversation_items (conversation, place, id, item) VALUES (?, ?, ?, ?)", rows)
        shot = image(path)
        other.execute("ROLLBACK")
    await database.aclose()
    ruined = list(ruins(shot, random.Random(2)))
    assert len(ruined) > 15
    for left in ruined:
        where = left.lay(tmp_path / "left")
        are_there(where, emitted)
        assert count(where, "SELECT count(*) FROM conversation_items WHERE id LIKE ?", "late%") == 0


def are_there(path: Path, emitted: Sequence[tuple[str, str]]) -> None:
    for query, value in emitted:
        assert count(path, query, value) == 1, query


def test_a_server_goes_on_from_what_a_cut_has_left(tmp_path: Path) -> None:
    """fault: K-J, K-B: it is frozen in the middle of a harmful call, and its files are all that is left of it."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    with server(before, f"sqlite:///{before}/t.db", tools=ALLOWED, runs={"ask_again": False}) as cut:
        cut.play(calling("look_up", "book"))
        cut.hold("book")
        cut.start()
        with cut.client() as client:
            id = client.responses.create(model="m", input="Go.", background=True, extra_body=WANTS).id
            output = client.conversations.create(items=[{"type": "message", "role": "user", "content": "Kept."}])
        until(lambda: cut.ran == ["look_up", "book"])
        after.mkdir()
        cut_off(cut, after, steps_of=id)
        with server(after, f"sqlite:///{after}/t.db", tools=ALLOWED, runs={"ask_again": False}) as left:
            left.play(calling("look_up", "book"))
            left.start()
            response = left.ended(id)
            with left.client() as client:
                [item] = client.conversations.items.list(output.id).data
    assert left.ran == ["look_up", "book"], "neither is run again"
    assert response.status == "completed"
    assert "Paris is sunny" in response.output_text
    assert "Kept." in str(item)


def cut_off(running: Server, place: Path, steps_of: str) -> None:
    """Have a place be what the power cut of a server leaves on its disk, and see that its files are in order."""
    running.signal(signal.SIGSTOP)
    for name in ("t.db", "t-runs.db"):
        image(running.place / name).lay(place, name)
    shutil.copy(running.place / "ran", place / "ran")
    steps = image(place / "t-runs.db")
    running.kill()
    assert count(image(place / "t.db").lay(place / "look"), "SELECT count(*) FROM runs WHERE id = ?", steps_of) == 1
    for number, left in enumerate(ruins(steps, random.Random(3))):
        assert count(left.lay(place / f"look{number}"), STEPS, steps_of) >= 3
