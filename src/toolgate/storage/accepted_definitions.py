"""Store the tool definitions that a person has accepted, so that a changed one is noticed across restarts."""

from collections.abc import Mapping

from toolgate.storage.database import Database, SqlConnection

_SAVE = """
INSERT INTO pins (source, tool, definition) VALUES (?, ?, ?)
ON CONFLICT (source, tool) DO UPDATE SET definition = excluded.definition
"""


class AcceptedDefinitionStore:
    """Stores accepted definitions by source and tool, and also which sources have none."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, source: str) -> dict[str, bytes] | None:
        """Return the accepted definitions of a source, or None if it was never seen."""

        # A source without tools has no rows in `pins`, and has been seen all the same: a tool that it adds is new.
        def read(db: SqlConnection) -> dict[str, bytes] | None:
            if not db.execute("SELECT 1 FROM pinned_sources WHERE source = ?", (source,)).fetchone():
                return None
            return dict(db.execute("SELECT tool, definition FROM pins WHERE source = ?", (source,)))

        return await self._database.read(read)

    async def save(self, source: str, definitions: Mapping[str, bytes]) -> None:
        """Store these definitions as accepted; once this returns they survive a crash."""
        rows = [(source, tool, definition) for tool, definition in definitions.items()]

        def write(db: SqlConnection) -> None:
            db.execute("INSERT INTO pinned_sources (source) VALUES (?) ON CONFLICT DO NOTHING", (source,))
            db.executemany(_SAVE, rows)

        await self._database.change(write)

    async def forget(self, source: str) -> None:
        """Delete a source: its next definitions are accepted as the first."""

        def delete(db: SqlConnection) -> None:
            db.execute("DELETE FROM pins WHERE source = ?", (source,))
            db.execute("DELETE FROM pinned_sources WHERE source = ?", (source,))

        await self._database.change(delete)
