"""Tools that were registered while the server ran, in SQLite, so that they are there after a restart.

What a registration says is nobody's business here. It may hold the headers of a service: the file is as secret as they are.
"""

from toolgate.storage.database import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS registrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    registration BLOB NOT NULL
);
"""
_SAVE = "INSERT OR REPLACE INTO registrations (name, registration) VALUES (?, ?)"


class RegistrationStore:
    """Keeps registrations by name."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.needs(_SCHEMA)

    async def all(self) -> list[tuple[str, bytes]]:
        """All that are kept, the oldest first."""
        query = "SELECT name, registration FROM registrations ORDER BY number"
        return await self._database.do(lambda db: db.execute(query).fetchall())

    async def save(self, name: str, registration: bytes) -> None:
        """Keep one; once this returns it survives a crash."""
        await self._database.do(lambda db: db.execute(_SAVE, (name, registration)))

    async def delete(self, name: str) -> None:
        """Forget one, if there is one of this name."""
        await self._database.do(lambda db: db.execute("DELETE FROM registrations WHERE name = ?", (name,)))
