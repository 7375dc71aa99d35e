"""`toolgate db`: what it says of a database, and how it ends."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.databases import Postgres
from toolgate.cli.commands import app
from toolgate.storage.migrations import migrations

NEWEST = migrations()[-1].version


@pytest.fixture
def db(storage_url: str, tmp_path: Path) -> "Db":
    return Db(tmp_path, storage_url)


class Db:
    def __init__(self, folder: Path, url: str) -> None:
        self.config = folder / "toolgate.yaml"
        self.config.write_text(f"storage: {url}\n")

    def __call__(self, task: str) -> Result:
        return CliRunner().invoke(app, ["db", task, "--config", str(self.config)], env={"COLUMNS": "200"})


def test_a_database_is_made_once(db: Db) -> None:
    assert "no file yet" in db("status").output or "version 0 of the tables; the newest is" in db("status").output
    assert f"from version 0 of the tables to {NEWEST}" in db("migrate").output
    assert f"version {NEWEST} of the tables, nothing to do" in db("migrate").output
    assert f"version {NEWEST} of the tables, the newest" in db("status").output
    checked = db("check")
    assert (checked.exit_code, "nothing is damaged" in checked.output) == (0, True)


def test_the_tables_of_runs_are_made_with_the_others(tmp_path: Path) -> None:
    """Who serves may then do without the right to make tables."""
    Db(tmp_path, f"sqlite:///{tmp_path}/t.db")("migrate")
    with closing(sqlite3.connect(tmp_path / "t-runs.db")) as steps:
        assert steps.execute("SELECT count(*) FROM workflow_status").fetchone() == (0,)


def test_a_role_that_may_make_no_tables_hears_so(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.database() as address:
        name = address.partition("?")[0].rpartition("/")[2]
        postgres.run("CREATE ROLE low LOGIN")
        postgres.run(f"REVOKE ALL ON DATABASE {name} FROM public; GRANT CONNECT ON DATABASE {name} TO low")
        emitted = Db(tmp_path, address.replace("postgres:", "low:", 1))("migrate")
    postgres.run("DROP ROLE low")
    assert emitted.exit_code == 1
    assert "the role lacks a right. (permission denied for schema public" in emitted.output


def test_looking_at_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    db = Db(tmp_path, f"sqlite:///{tmp_path}/none.db")
    assert "there is no file yet" in db("status").output
    assert not (tmp_path / "none.db").exists()


def test_what_the_database_says_is_reported_once(tmp_path: Path) -> None:
    assert Db(tmp_path, f"sqlite:///{tmp_path}")("check").output.count("Is a directory") == 1


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    emitted = Db(tmp_path, "postgresql://ann:canary-pw@127.0.0.1:1/base?connect_timeout=2")("migrate")
    assert emitted.exit_code == 1
    assert emitted.output.startswith(
        "postgresql://127.0.0.1:1/base: The storage is not available: it cannot be reached. ("
    )
    assert "canary" not in emitted.output


@pytest.mark.parametrize("task", ["status", "migrate", "check"])
def test_a_damaged_file_is_reported(tmp_path: Path, task: str) -> None:
    """fault: K-I"""
    (tmp_path / "a.db").write_bytes(b"not a database " * 1000)
    emitted = Db(tmp_path, f"sqlite:///{tmp_path}/a.db")(task)
    assert emitted.exit_code == 1
    assert "restore a backup" in emitted.output
