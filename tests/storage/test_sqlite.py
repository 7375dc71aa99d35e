"""A SQLite file that is held, full, closed to writing, damaged or gone (fault: K-I)."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.database import Database, DuplicateRow, SqlConnection

ADD = "INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)"


def spend(db: SqlConnection) -> None:
    db.execute(ADD, ("ann", "2026-11", 1.0))


async def spent(database: Database) -> list[tuple[str]]:
    return await database.read(lambda db: db.execute("SELECT key FROM spending").fetchall())


async def refused(database: Database) -> str:
    """What a caller hears, which is always that the storage is not there and when to come back."""
    with pytest.raises(GatewayOverloaded) as caught:
        await database.change(spend)
    assert (caught.value.code, caught.value.status) == ("storage_unavailable", 503)
    assert caught.value.retry_after
    return caught.value.message


async def test_a_locked_file_is_a_server_error_that_passes(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", timeout=0.05)
    await database.open()
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert "locked" in await refused(database)
    assert await spent(database) == [], "who reads does not wait for who writes"
    holder.execute("ROLLBACK")
    holder.close()
    await database.change(spend)
    assert await spent(database) == [("ann",)]
    await database.aclose()


async def test_of_many_that_wait_for_a_locked_file_none_waits_for_all_others(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", timeout=0.2)
    await database.open()
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(30):  # one after the other they would wait for 80 seconds
        emitted = await asyncio.gather(*[database.change(spend) for _ in range(400)], return_exceptions=True)
    assert {type(one) for one in emitted} == {GatewayOverloaded}
    holder.close()
    await database.aclose()


@pytest.mark.parametrize(
    ("problem", "mended", "message"),
    [
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 100000", "full"),
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0", "readonly"),
    ],
)
async def test_a_full_or_read_only_file_keeps_nothing_and_recovers(
    tmp_path: Path, problem: str, mended: str, message: str
) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(spend)
    large = "x" * 5_000_000
    await database.read(lambda db: db.execute(problem).fetchall())
    with pytest.raises(GatewayOverloaded, match=message):
        await database.change(lambda db: db.execute(ADD, (large, "2026-11", 1.0)))
    assert await spent(database) == [("ann",)]
    await database.read(lambda db: db.execute(mended).fetchall())
    await database.change(lambda db: db.execute(ADD, (large, "2026-11", 1.0)))
    assert len(await spent(database)) == 2
    await database.aclose()


async def test_a_place_that_cannot_be_is_our_trouble_and_passes(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("not a folder")
    database = Database(tmp_path / "folder" / "a.db")
    await refused(database)
    (tmp_path / "folder").unlink()
    await database.change(spend)
    await database.aclose()


@pytest.mark.parametrize("damage", ["page", "head"])
async def test_a_damaged_file_is_found_when_it_is_opened_and_never_written(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.db"
    database = Database(path)
    for number in range(200):
        row = (f"{number:0500}", "2026-11", 1.0)
        await database.change(lambda db, row=row: db.execute(ADD, row))  # type: ignore[misc]
    await database.aclose()
    content = bytearray(path.read_bytes())
    at = 0 if damage == "head" else len(content) - 3 * 4096
    content[at : at + 200] = b"\xa5" * 200
    path.write_bytes(content)
    database = Database(path)
    assert "restore a backup" in await refused(database)
    assert "restore a backup" in await refused(database)
    await database.aclose()
    assert path.read_bytes() == content


async def test_what_is_found_damaged_later_is_not_written_any_more(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.open()

    def stumble(db: SqlConnection) -> None:
        spend(db)
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    with pytest.raises(GatewayOverloaded, match="damaged"):
        await database.change(stumble)
    assert "damaged" in await refused(database)
    await database.aclose()
    with sqlite3.connect(tmp_path / "a.db") as left:
        assert left.execute("SELECT count(*) FROM spending").fetchone() == (0,)
    left.close()


async def test_a_file_that_was_taken_away_is_not_written_into_the_void(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(spend)
    (tmp_path / "a.db").rename(tmp_path / "b.db")
    assert "moved or deleted" in await refused(database)
    (tmp_path / "b.db").rename(tmp_path / "a.db")
    assert await spent(database) == [("ann",)]
    await database.aclose()


async def test_a_deleted_log_loses_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(spend)
    (tmp_path / "a.db-wal").unlink()
    await database.change(lambda db: db.execute(ADD, ("bob", "2026-11", 1.0)))
    other = sqlite3.connect(tmp_path / "a.db")
    assert other.execute("SELECT key FROM spending ORDER BY key").fetchall() == [("ann",), ("bob",)]
    other.close()
    await database.aclose()


async def test_a_key_that_is_there_already_is_a_duplicate(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(spend)
    with pytest.raises(DuplicateRow):
        await database.change(spend)
    await database.aclose()


async def test_a_wrong_statement_is_our_own_fault(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await database.read(lambda db: db.execute("SELECT * FROM nowhere"))
    await database.aclose()


async def test_the_log_of_a_large_change_is_given_back_to_the_disk(tmp_path: Path) -> None:
    """Forgetting an owner with gigabytes of records left a log of that size beside the file for as long as it was open."""
    database, log = Database(tmp_path / "a.db"), tmp_path / "a.db-wal"
    add = "INSERT INTO responses (id, owner, created, input, body) VALUES (?, 'ann', 1, ?, x'')"
    rows = [(str(number), bytes(1024 * 1024)) for number in range(24)]
    await database.change(lambda db: db.executemany(add, rows) and None)
    assert log.stat().st_size > 24 * 1024 * 1024
    for _ in range(3):
        await database.change(spend_again)
    assert log.stat().st_size <= 16 * 1024 * 1024
    await database.aclose()


def spend_again(db: SqlConnection) -> None:
    db.execute(f"{ADD} ON CONFLICT (key, period) DO UPDATE SET amount = 2", ("ann", "2026-11", 1.0))
