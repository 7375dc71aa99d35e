"""SQLite: one file, one connection, one thread.

A write is on the disk before it is reported done: WAL with `synchronous=FULL`. Other processes may use the same file, and
SQLite lets one of them write at a time. A file that is damaged, or was taken away, is not written any more.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from toolgate.storage.engine import Connection, Duplicate, Work, unavailable
from toolgate.storage.files import make_private

_T = TypeVar("_T")

CHECKED_BYTES = 64 * 1024 * 1024
"""A file up to this size is looked through when it is opened, which takes a tenth of a second at most."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TAKEN = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


class SqliteEngine:
    """A file, or without a path what stays in memory."""

    threads = 1
    words = {"NUMBERED": "INTEGER PRIMARY KEY"}  # noqa: RUF012 - read only, as the Protocol says

    def __init__(self, path: Path | None, patience: float) -> None:
        self._patience = patience
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None
        self._damage: str | None = None

    def do(self, work: Work[_T]) -> _T:
        """What the work reads."""
        with self._mapped():
            return work(self._connected())

    def change(self, work: Work[_T]) -> _T:
        """The work as one transaction, in which nobody else writes."""
        with self._mapped(), self._connected() as db:
            db.execute("BEGIN IMMEDIATE")
            return work(db)

    alone = change

    def has_table(self, db: Connection, name: str) -> bool:
        """Whether there is a table of this name."""
        return (
            db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None
        )

    def check(self) -> list[str]:
        """What SQLite finds when it reads every page and every index."""
        with self._mapped():
            found = [str(row[0]) for row in self._connected().execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def was_made(self, number: str) -> bool:
        """Whoever commits to a file knows at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file; what is in the log moves into it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._damage is not None:
            raise unavailable(self._damage)
        if self._connection is not None and self._path is not None:
            self._watch(self._path)
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _watch(self, path: Path) -> None:
        """What is written to a file that was deleted is lost, and nothing but looking tells of it."""
        if _number(path) != self._file:
            raise unavailable(f"{path} was moved or deleted while in use; put it back, or start again")
        if _number(_log_of(path)) is None:
            self.close()  # what was in the deleted log is still known here, and moves into the file

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            make_private(self._path)
        connection = sqlite3.connect(self._path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {round(self._patience * 1000)}")
            _use_wal(connection, self._patience)
            connection.execute("PRAGMA synchronous = FULL")
            if self._path is not None:
                self._file = _number(self._path)
                _look_through(connection, self._path)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """SQLite's own failures as ours."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise _duplicate(error) from error
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_ERROR:  # the statement is wrong, not the file
                raise
            if code in _DAMAGED:
                self._damage = f"{error}; the file is damaged and is not written any more: restore a backup"
            raise unavailable(self._damage or str(error)) from error
        except OSError as error:
            raise unavailable(str(error)) from error


def _duplicate(error: sqlite3.IntegrityError) -> Exception:
    return Duplicate(str(error)) if error.sqlite_errorcode in _TAKEN else error


def _look_through(connection: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size <= CHECKED_BYTES:
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            damage = sqlite3.DatabaseError(found)
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _number(path: Path) -> int | None:
    """What tells a file from another that took its name."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Two that make the same file at the same moment may find it locked here, whatever the busy timeout says."""
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.05)
