"""Read which workflows DBOS has stored, without importing DBOS.

At a start that is almost always none, so that the cost of DBOS, most of a second and 60 MB, is spared.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from toolgate.storage.database import Database, SqlConnection


async def stored_workflows(url: str, database: Database) -> Sequence[str]:
    """Return the ids of the workflows in DBOS's system database, which for PostgreSQL is in ours."""
    if url.startswith("sqlite:"):
        return await asyncio.to_thread(_in_file, Path(url.removeprefix("sqlite:///")))
    return await database.read(_in_postgres)


def _in_file(path: Path) -> Sequence[str]:
    if not path.exists():
        return []
    # `mode=rw` creates no file. Reading alone would not do: after a crash the log of the database is recovered first.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as db:
        tables = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'workflow_status'").fetchall()
        return [id for (id,) in db.execute("SELECT workflow_uuid FROM workflow_status")] if tables else []


def _in_postgres(db: SqlConnection) -> Sequence[str]:
    [(table,)] = db.execute("SELECT to_regclass('dbos.workflow_status')").fetchall()
    if table is None:
        return []
    return [id for (id,) in db.execute("SELECT workflow_uuid FROM dbos.workflow_status").fetchall()]
