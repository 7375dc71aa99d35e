"""The schema of all tables: numbered files, each applied once and whole.

The files are written in SQLite's words; an engine says which of them it spells differently. A file that was released is
never changed: the next change is the next file. Two nodes that start together do not both apply one.
"""

import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct

from toolgate.conversation.errors import GatewayFault
from toolgate.storage.engine import Connection, Engine

_VERSIONS = "CREATE TABLE schema_versions (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"
_COMMENT = re.compile(r"--[^\n]*")


class NewerSchema(GatewayFault):
    """The database was written by a newer version of this program."""

    code = "storage_newer"


class Migration(Struct, frozen=True):
    """One step from a version of the schema to the next."""

    version: int
    name: str
    text: str


class Status(Struct, frozen=True):
    """Which version the tables have, 0 for none, and which this program works with."""

    version: int
    newest: int


@cache
def migrations() -> tuple[Migration, ...]:
    """All there are, in their order."""
    found = [file for file in files("toolgate.storage.schema").iterdir() if file.name.endswith(".sql")]
    steps = [Migration(int(file.name[:4]), file.name[5:-4], file.read_text("utf-8")) for file in found]
    return tuple(sorted(steps, key=lambda step: step.version))


def status(engine: Engine, db: Connection) -> Status:
    """How the database stands."""
    version = 0
    if engine.has_table(db, "schema_versions"):
        version = db.execute("SELECT max(version) FROM schema_versions").fetchone()[0] or 0
    return Status(version, migrations()[-1].version)


def migrate(engine: Engine) -> list[Migration]:
    """Apply what is missing; what was applied."""
    if not _missing(engine, engine.do(lambda db: status(engine, db))):
        return []  # without a lock and without the right to make tables

    def apply(db: Connection) -> list[Migration]:
        missing = _missing(engine, status(engine, db))
        if not engine.has_table(db, "schema_versions"):
            _create(db, _VERSIONS, engine.words)
        for step in missing:
            _create(db, step.text, engine.words)
            db.execute("INSERT INTO schema_versions VALUES (?, ?, ?)", (step.version, step.name, time.time()))
        return missing

    return engine.alone(apply)


def _missing(engine: Engine, now: Status) -> list[Migration]:
    if now.version > now.newest:
        raise NewerSchema(
            f"The database has version {now.version} of the tables and this program knows {now.newest}: "
            "it was used by a newer version. Use that one, or restore a backup made before."
        )
    return [step for step in migrations() if step.version > now.version]


def _create(db: Connection, text: str, words: Mapping[str, str]) -> None:
    """Run the statements of a schema, in the engine's words."""
    for statement in _statements(text):
        db.execute(_spelled(statement, words))


def _statements(text: str) -> Iterator[str]:
    return (statement for part in _COMMENT.sub("", text).split(";") if (statement := part.strip()))


def _spelled(statement: str, words: Mapping[str, str]) -> str:
    for word, spelled in words.items():
        statement = re.sub(rf"\b{word}\b", spelled, statement)
    return statement
