"""Tools that were registered while the server ran, so that they are there after a restart.

What a registration says is nobody's business here. It may hold credentials of a service, so it is encrypted where there is
a secret for that: beside a SQLite file there is one.
"""

from pathlib import Path

from toolgate.conversation.errors import GatewayFault
from toolgate.storage.database import Connection, Database
from toolgate.storage.files import make_secret, read_secret, secret_file
from toolgate.storage.sealing import Unreadable, derived, seal, unseal

_SAVE = "INSERT INTO registrations (name, registration) VALUES (?, ?)"
_DELETE = "DELETE FROM registrations WHERE name = ?"
_UPDATE = "UPDATE registrations SET registration = ? WHERE name = ? AND registration = ?"
_SEALED = b"sealed:"
_PURPOSE = "registrations"


class RegistrationStore:
    """Keeps registrations by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[tuple[str, bytes]]:
        """All that are kept, the oldest first; those that were stored in clear are encrypted by this."""
        query = "SELECT name, registration FROM registrations ORDER BY number"
        found = [(name, bytes(text)) for name, text in await self._database.do(lambda db: db.execute(query).fetchall())]
        path = self._database.path
        clear = [(name, text) for name, text in found if not text.startswith(_SEALED)]
        if path is not None and clear:
            rows = [(_sealed(path, text), name, text) for name, text in clear]
            await self._database.change(lambda db: db.executemany(_UPDATE, rows))
        return [(name, _opened(path, text)) for name, text in found]

    async def save(self, name: str, registration: bytes) -> None:
        """Keep one; once this returns it survives a crash."""
        path = self._database.path
        kept = registration if path is None else _sealed(path, registration)

        def write(db: Connection) -> None:
            db.execute(_DELETE, (name,))  # who comes again comes last
            db.execute(_SAVE, (name, kept))

        await self._database.change(write)

    async def delete(self, name: str) -> None:
        """Forget one, if there is one of this name."""
        await self._database.change(lambda db: db.execute(_DELETE, (name,)))


def _sealed(path: Path, text: bytes) -> bytes:
    return _SEALED + seal(derived(_PURPOSE, make_secret(path)), text)


def _opened(path: Path | None, text: bytes) -> bytes:
    if not text.startswith(_SEALED):
        return text
    secret = None if path is None else read_secret(path)
    if path is None or secret is None:
        where = "its secret" if path is None else str(secret_file(path))
        raise GatewayFault(f"The registrations are encrypted and {where} is missing: restore it from a backup.")
    try:
        return unseal(derived(_PURPOSE, secret), text[len(_SEALED) :])
    except Unreadable:
        raise GatewayFault(f"The registrations were encrypted with another secret than {secret_file(path)}.") from None
