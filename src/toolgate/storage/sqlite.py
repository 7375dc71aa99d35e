"""Use SQLite: one file, one connection, one thread.

A write is on the disk before it is reported done: WAL with `synchronous=FULL`. Changes that wait while the disk syncs are
then committed together, because a busy disk may take seconds for each sync. Other processes may use the same file, and
SQLite lets one of them write at a time. A file that is damaged, or was moved or deleted, is not written any more.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from toolgate.storage.sql_engine import DatabaseWorkOutcome, DuplicateRow, SqlConnection, Work, unavailable
from toolgate.storage.sqlite_file_permissions import make_private

_T = TypeVar("_T")

# A file up to this size is checked when it is opened, which takes a tenth of a second at most.
CHECKED_BYTES = 64 * 1024 * 1024

# How many times longer work waits for the thread than for a lock: a disk that other programs keep busy may take seconds to
# sync, and answers then.
QUEUE_FACTOR = 6

# What the log of a large change took is given back to the disk at the next checkpoint, but for this.
_LOG_BYTES = 16 * 1024 * 1024

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DUPLICATE = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


class SqliteEngine:
    """A SQLite file, or without a path a database in memory."""

    threads = 1
    type_names = {"NUMBERED": "INTEGER PRIMARY KEY"}  # noqa: RUF012 - read only, as the Protocol says

    def __init__(self, path: Path | None, timeout: float) -> None:
        self.lock_seconds = timeout
        self.queue_seconds = QUEUE_FACTOR * timeout
        self.commit_seconds = self._sync_seconds = 0.0
        self._timeout = timeout
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None
        self._damage: str | None = None

    def read(self, work: Work[_T]) -> _T:
        with self._map_errors():
            return work(self._connected())

    def change(self, work: Work[_T]) -> _T:
        """Run the work as one transaction, in which no other connection writes."""
        with self._map_errors(), self._connected() as db:
            # Takes the write lock at once: a transaction that reads first may fail with SQLITE_BUSY when it writes.
            db.execute("BEGIN IMMEDIATE")
            return work(db)

    def change_together(self, works: Iterator[Work[Any]]) -> list[DatabaseWorkOutcome]:
        """Run works as one transaction, for as long as running them takes no longer than the last commit did.

        So a slow disk syncs once for all that wait, and nothing on a fast one waits for more than twice its own time.
        """
        done: list[Work[Any]] = []
        outcomes: list[DatabaseWorkOutcome] = []
        # Outside the `try`: what keeps the transaction from beginning is raised, and no work has been taken yet.
        with self._map_errors():
            db = self._connected()
            db.execute("BEGIN IMMEDIATE")
        try:
            began, changes = time.monotonic(), db.total_changes
            for work in works:
                done.append(work)
                outcomes.append(_outcome(db, work, nested=len(done) > 1))
                # A first work that failed has rolled back the whole transaction.
                if time.monotonic() - began > self._sync_seconds or not db.in_transaction:
                    break
            committing = time.monotonic()
            db.commit()
            self.commit_seconds = time.monotonic() - committing
            if db.total_changes != changes:  # a commit without changes syncs nothing
                self._sync_seconds = self.commit_seconds
        except Exception:  # noqa: BLE001 - whatever it was is raised again where it belongs
            with self._map_errors():
                db.rollback()
            # Each runs again by itself, so that the error of one does not fail the others.
            return [self._outcome_alone(work) for work in done]
        return outcomes

    exclusively = change

    def has_table(self, db: SqlConnection, name: str) -> bool:
        return (
            db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None
        )

    def check(self) -> list[str]:
        """Return what SQLite finds when it reads every page and every index."""
        with self._map_errors():
            found = [str(row[0]) for row in self._connected().execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def was_committed(self, number: str) -> bool:
        """Fail: the end of a commit to a file is always known."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file; the write-ahead log is merged into it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _outcome_alone(self, work: Work[Any]) -> DatabaseWorkOutcome:
        """Run work in a transaction of its own, after one with others has failed."""
        try:
            return DatabaseWorkOutcome(self.change(work))
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            return DatabaseWorkOutcome(error=error)

    def _connected(self) -> sqlite3.Connection:
        if self._damage is not None:
            raise unavailable(self._damage)
        if self._connection is not None and self._path is not None:
            # Writes to a file that was deleted while it is open would be lost without an error.
            if _inode(self._path) != self._file:
                raise unavailable(f"{self._path} was moved or deleted while in use; put it back, or start again")
            # If only the log was deleted, SQLite still has its content, and merges it into the file when it closes.
            if _inode(self._path.with_name(self._path.name + "-wal")) is None:
                self.close()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            make_private(self._path)
        # `isolation_level=None`: the module would begin transactions by itself, and not with IMMEDIATE. Threads are not
        # checked because the one of `aclose` is another; only one at a time uses the connection.
        connection = sqlite3.connect(self._path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1000)}")
            _use_wal(connection, self._timeout)
            connection.execute("PRAGMA synchronous = FULL")  # with NORMAL, WAL loses the last commits in a power cut
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            # Overwrite what is deleted; the default is that of the build.
            connection.execute("PRAGMA secure_delete = ON")
            # A statement of many rows keeps the pages that it changes, to undo it, and would write them to a file.
            connection.execute("PRAGMA temp_store = MEMORY")
            if self._path is not None:
                self._file = _inode(self._path)
            if self._path is not None and self._path.stat().st_size <= CHECKED_BYTES:
                [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    # A finding is a row and no error: with this code `_map_errors` stops all use of the file.
                    damage = sqlite3.DatabaseError(found)
                    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                    raise damage
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Map SQLite's errors to ours."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode not in _DUPLICATE:
                raise
            raise DuplicateRow(str(error)) from error
        except sqlite3.DatabaseError as error:
            # The low byte is the primary code: SQLITE_CORRUPT_INDEX and its like count as SQLITE_CORRUPT.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_ERROR:  # the statement is wrong, not the file
                raise
            if code in _DAMAGED:
                self._damage = f"{error}; the file is damaged and is not written any more: restore a backup"
            raise unavailable(self._damage or str(error)) from error
        except OSError as error:
            raise unavailable(str(error)) from error


def _outcome(db: sqlite3.Connection, work: Work[Any], *, nested: bool) -> DatabaseWorkOutcome:
    """Run work in the open transaction, and undo only its own writes if it raises; errors of SQLite end the transaction."""
    # The first needs no savepoint: there is nothing before it to keep, and most transactions have one work only.
    if nested:
        db.execute("SAVEPOINT work")
    try:
        outcome = DatabaseWorkOutcome(work(db))
    except Exception as error:
        duplicate = isinstance(error, sqlite3.IntegrityError) and error.sqlite_errorcode in _DUPLICATE
        if isinstance(error, (sqlite3.Error, OSError)) and not duplicate:
            raise
        outcome = DatabaseWorkOutcome(error=DuplicateRow(str(error)) if duplicate else error)
        db.execute("ROLLBACK TO work" if nested else "ROLLBACK")
    if nested:
        db.execute("RELEASE work")
    return outcome


def _inode(path: Path) -> int | None:
    """Return the inode, by which a file differs from another of the same name."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to WAL; two processes that create the file at once may find it locked here, despite the busy timeout."""
    until = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.05)
