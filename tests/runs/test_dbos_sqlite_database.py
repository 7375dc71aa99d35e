"""The SQLite file of DBOS is migrated as a whole, or not at all."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.step_records import DurableStepLog


async def open_and_close(file: Path) -> list[str]:
    """Return the problems that were reported."""
    problems: list[str] = []
    workflows = DbosExecutor(f"sqlite:///{file}", "n", problems.append)
    await workflows.open(nothing)
    await workflows.aclose()
    return problems


async def nothing(id: str, steps: DurableStepLog) -> None:
    """The work of no run."""


def tables(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db:
        [[number]] = db.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return int(number)


async def test_the_file_is_migrated_in_one_transaction(tmp_path: Path) -> None:
    """fault: K-H"""
    file = tmp_path / "steps.db"
    seen: list[int] = []

    def look(*_: Any) -> None:
        seen.append(tables(file))

    event.listen(Engine, "after_cursor_execute", look)
    try:
        assert await open_and_close(file) == []
    finally:
        event.remove(Engine, "after_cursor_execute", look)
    assert set(seen) == {0, tables(file)}
    assert seen.count(0) > 50


@pytest.mark.parametrize("statement", [40, 90])
async def test_a_migration_that_was_killed_is_made_by_the_next_start(tmp_path: Path, statement: int) -> None:
    """fault: K-A, K-H"""
    file = tmp_path / "steps.db"
    command = [sys.executable, "-m", "tests.runs.test_dbos_sqlite_database", str(file), str(statement)]
    ended = await asyncio.to_thread(subprocess.run, command, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert await open_and_close(file) == []


def _die_at(statement: int) -> None:
    left = iter(range(statement, -1, -1))

    def count(*_: Any) -> None:
        if next(left) <= 1:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "after_cursor_execute", count)


if __name__ == "__main__":
    _die_at(int(sys.argv[2]))
    asyncio.run(open_and_close(Path(sys.argv[1])))
