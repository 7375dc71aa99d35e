"""Store tools that were registered while the server ran, so that they are there after a restart.

The content of a registration is not read here. It may hold credentials of a service, so it is encrypted where there is a
secret for that: beside a SQLite file there is one.
"""

from pathlib import Path

from toolgate.conversation.errors import InternalGatewayError
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.row_encryption import UnreadableRow, decrypt, derive_secret, encrypt
from toolgate.storage.sqlite_file_permissions import make_secret, read_secret, secret_file

_SAVE = "INSERT INTO registrations (name, registration) VALUES (?, ?)"
_DELETE = "DELETE FROM registrations WHERE name = ?"
# Only what was read is replaced: another process may have registered the name anew.
_UPDATE = "UPDATE registrations SET registration = ? WHERE name = ? AND registration = ?"
# Registrations in PostgreSQL, and those of earlier versions, are JSON in clear, which never begins so.
_SEALED = b"sealed:"
_PURPOSE = "registrations"


class RegisteredSourceStore:
    """Stores registrations by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[tuple[str, bytes]]:
        """Return all registrations, the oldest first; those that are stored in clear are encrypted by this."""
        query = "SELECT name, registration FROM registrations ORDER BY number"
        found = [
            (name, bytes(text)) for name, text in await self._database.read(lambda db: db.execute(query).fetchall())
        ]
        path = self._database.path
        clear = [(name, text) for name, text in found if not text.startswith(_SEALED)]
        if path is not None and clear:
            rows = [(_encrypted(path, text), name, text) for name, text in clear]
            await self._database.change(lambda db: db.executemany(_UPDATE, rows))
        return [(name, _decrypted(path, text)) for name, text in found]

    async def save(self, name: str, registration: bytes) -> None:
        """Store a registration; once this returns it survives a crash."""
        path = self._database.path
        stored = registration if path is None else _encrypted(path, registration)

        def write(db: SqlConnection) -> None:
            db.execute(_DELETE, (name,))  # who comes again comes last
            db.execute(_SAVE, (name, stored))

        await self._database.change(write)

    async def delete(self, name: str) -> None:
        """Delete the registration of this name, if there is one."""
        await self._database.change(lambda db: db.execute(_DELETE, (name,)))


def _encrypted(path: Path, text: bytes) -> bytes:
    return _SEALED + encrypt(derive_secret(_PURPOSE, make_secret(path)), text)


def _decrypted(path: Path | None, text: bytes) -> bytes:
    if not text.startswith(_SEALED):
        return text
    secret = None if path is None else read_secret(path)
    if path is None or secret is None:
        where = "its secret" if path is None else str(secret_file(path))
        raise InternalGatewayError(f"The registrations are encrypted and {where} is missing: restore it from a backup.")
    try:
        return decrypt(derive_secret(_PURPOSE, secret), text[len(_SEALED) :])
    except UnreadableRow:
        raise InternalGatewayError(
            f"The registrations were encrypted with another secret than {secret_file(path)}."
        ) from None
