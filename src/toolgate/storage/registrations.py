"""Tools that were registered while the server ran, so that they are there after a restart.

What a registration says is nobody's business here. It may hold the headers of a service: the file is as secret as they are.
"""

from toolgate.storage.database import Connection, Database

_SAVE = "INSERT INTO registrations (name, registration) VALUES (?, ?)"
_DELETE = "DELETE FROM registrations WHERE name = ?"


class RegistrationStore:
    """Keeps registrations by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[tuple[str, bytes]]:
        """All that are kept, the oldest first."""
        query = "SELECT name, registration FROM registrations ORDER BY number"
        return await self._database.do(lambda db: db.execute(query).fetchall())

    async def save(self, name: str, registration: bytes) -> None:
        """Keep one; once this returns it survives a crash."""

        def write(db: Connection) -> None:
            db.execute(_DELETE, (name,))  # who comes again comes last
            db.execute(_SAVE, (name, registration))

        await self._database.change(write)

    async def delete(self, name: str) -> None:
        """Forget one, if there is one of this name."""
        await self._database.change(lambda db: db.execute(_DELETE, (name,)))
