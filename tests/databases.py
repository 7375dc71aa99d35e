"""Databases for tests: SQLite files, and databases of a real PostgreSQL that is started when a test first wants one.

Each test has a database of its own. The server listens on a unix socket alone and is gone when the tests are over.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ENGINES = ("sqlite", "postgresql")
_FAST = ("fsync = off", "full_page_writes = off")


class Postgres:
    """A server of our own, with as many databases as are asked for."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self._numbers = count(1)

    def address(self, name: str = "postgres") -> str:
        """The address of one of its databases."""
        return str(self.server.get_uri(database=name))

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement as the server's owner, on its first database."""
        import psycopg  # not before a test needs it

        with psycopg.connect(self.address(), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of an empty database, which is dropped at the end, whoever still uses it."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield self.address(name)
        finally:
            self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def kill(self) -> None:
        """End the server as a crash of the machine would, but for the disk."""
        process = self.server.get_postmaster_info().process
        children = process.children()
        process.kill()
        process.wait(10)
        for child in children:  # they notice by themselves, yet a new server must not meet them
            child.wait(10)

    def start(self) -> None:
        """Start it again at the same address."""
        self.server.ensure_postgres_running()


@contextmanager
def storage_of(engine: str, folder: Path, postgres: Callable[[], Postgres]) -> Iterator[str]:
    """The URL of an empty storage of this engine."""
    if engine == "sqlite":
        yield f"sqlite:///{folder / 'toolgate.db'}"
        return
    with postgres().database() as address:
        yield address


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A PostgreSQL in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))  # short: a socket's path has 107 bytes
    try:
        server = _pgserver().get_server(folder, cleanup_mode="stop")
        try:
            postgres = Postgres(server)
            for setting in _FAST:
                postgres.run(f"ALTER SYSTEM SET {setting}")
            postgres.run("SELECT pg_reload_conf()")
            yield postgres
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _pgserver() -> Any:
    """It keeps a lock where the user's programs run, which is nowhere for some: there it has a folder of its own."""
    place = Path(tempfile.gettempdir()) / f"toolgate-tests-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(place))
        import pgserver
    return pgserver
