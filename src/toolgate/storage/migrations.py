"""Apply the schema of all tables: numbered files, each applied once and whole.

The files are written for SQLite; an engine lists the types that it names differently. A file that was released is never
changed: the next change is the next file. Two nodes that start together do not both apply one.
"""

import re
import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct

from toolgate.conversation.errors import InternalGatewayError
from toolgate.storage.sql_engine import SqlConnection, SqlEngine

_VERSIONS = "CREATE TABLE schema_versions (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"
# Removed before a schema is split at its semicolons: a comment may hold one.
_COMMENT = re.compile(r"--[^\n]*")


class NewerSchema(InternalGatewayError):
    """The database was written by a newer version of this program."""

    code = "storage_newer"


class Migration(Struct, frozen=True):
    """One step from a version of the schema to the next."""

    version: int
    name: str
    text: str


class SchemaStatus(Struct, frozen=True):
    """The version of the tables, 0 for none, and the one that this program works with."""

    version: int
    newest: int


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in their order."""
    found = [file for file in files("toolgate.storage.schema").iterdir() if file.name.endswith(".sql")]
    steps = [Migration(int(file.name[:4]), file.name[5:-4], file.read_text("utf-8")) for file in found]
    return tuple(sorted(steps, key=lambda step: step.version))


def status(engine: SqlEngine, db: SqlConnection) -> SchemaStatus:
    """Return the versions of the database and of this program."""
    version = 0
    if engine.has_table(db, "schema_versions"):
        version = db.execute("SELECT max(version) FROM schema_versions").fetchone()[0] or 0
    return SchemaStatus(version, migrations()[-1].version)


def migrate(engine: SqlEngine) -> list[Migration]:
    """Apply the missing migrations and return them."""
    if not _missing(engine, engine.read(lambda db: status(engine, db))):
        return []  # without a lock and without the right to make tables

    def apply(db: SqlConnection) -> list[Migration]:
        # Looked up again, now under the lock: another node may have applied them meanwhile.
        missing = _missing(engine, status(engine, db))
        if not engine.has_table(db, "schema_versions"):
            _create(db, _VERSIONS, engine.type_names)
        for step in missing:
            _create(db, step.text, engine.type_names)
            db.execute("INSERT INTO schema_versions VALUES (?, ?, ?)", (step.version, step.name, time.time()))
        return missing

    return engine.exclusively(apply)


def _missing(engine: SqlEngine, now: SchemaStatus) -> list[Migration]:
    if now.version > now.newest:
        raise NewerSchema(
            f"The database has version {now.version} of the tables and this program knows {now.newest}: "
            "it was used by a newer version. Use that one, or restore a backup made before."
        )
    return [step for step in migrations() if step.version > now.version]


def _create(db: SqlConnection, text: str, type_names: Mapping[str, str]) -> None:
    """Run the statements of a schema, with the engine's type names."""
    text = _COMMENT.sub("", text)
    for name, own in type_names.items():
        text = re.sub(rf"\b{name}\b", own, text)
    # One by one: the `executescript` of sqlite3 would first commit the transaction that is open.
    for statement in text.split(";"):
        if statement.strip():
            db.execute(statement.strip())
