"""Store keys that were created while the server ran: their names, digests and rights.

The key itself is never stored. Every change of a row increments a number in the same transaction, so that other processes
see by it that they must read again. Rights are JSON that is not read here.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection

_FIELDS = "id, name, owner, digest, shown, rights, created, expires, revoked, last_used, former, former_until"
_COUNT = """
INSERT INTO api_key_changes VALUES (1, 1)
ON CONFLICT (one) DO UPDATE SET number = api_key_changes.number + 1
"""
_CREATE = f"INSERT INTO api_keys ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"  # noqa: S608 - constants
_UPDATE = """
UPDATE api_keys SET owner = ?, digest = ?, shown = ?, rights = ?, expires = ?, revoked = ?, former = ?, former_until = ?
WHERE id = ?
"""


class StoredKey(Struct, frozen=True):
    """A key as it is stored; times are whole seconds, `shown` is what may be displayed of the key itself.

    `former` is the digest of its earlier secret, which is valid until `former_until`.
    """

    id: str
    name: str
    owner: str
    digest: str
    shown: str
    rights: str
    created: int
    expires: int | None = None
    revoked: int | None = None
    last_used: int | None = None
    former: str | None = None
    former_until: int | None = None


class KeyStore:
    """Stores keys. A name is taken for ever: what its first holder owns must not pass to another."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def number(self) -> int:
        """Return how many changes there were."""
        return await self._database.read(_number)

    async def all(self) -> tuple[int, list[StoredKey]]:
        """Return every key, the oldest first, and a number of changes that is never ahead of them."""

        def read(db: SqlConnection) -> tuple[int, list[StoredKey]]:
            # The number first: a key that changes in between is then read once too often, and never missed.
            number = _number(db)
            rows = db.execute(f"SELECT {_FIELDS} FROM api_keys ORDER BY created, id").fetchall()  # noqa: S608 - constants
            return number, [StoredKey(*row) for row in rows]

        return await self._database.read(read)

    async def create(self, key: StoredKey) -> bool:
        """Store a new key; False if its name was ever taken."""

        def write(db: SqlConnection) -> bool:
            made = db.execute(_CREATE, astuple(key)).rowcount == 1
            if made:
                db.execute(_COUNT)
            return made

        return await self._database.change(write)

    async def change(self, id: str, edit: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        """Replace a key by what `edit` returns for it; None if there is none. The name and id stay."""

        def write(db: SqlConnection) -> StoredKey | None:
            row = db.execute(f"SELECT {_FIELDS} FROM api_keys WHERE id = ?", (id,)).fetchone()  # noqa: S608 - constants
            if row is None:
                return None
            new = edit(StoredKey(*row))
            values = (new.owner, new.digest, new.shown, new.rights, new.expires, new.revoked)
            db.execute(_UPDATE, (*values, new.former, new.former_until, id))
            db.execute(_COUNT)
            return new

        return await self._database.change(write)

    async def demanded(self) -> bool:
        """Return whether a configuration has required keys since it was last stored that none are."""
        return await self._database.read(lambda db: db.execute("SELECT 1 FROM key_demand").fetchone() is not None)

    async def demand(self, demanded: bool) -> None:
        """Store whether keys are required; other processes see that as a change."""

        def write(db: SqlConnection) -> None:
            before = db.execute("SELECT 1 FROM key_demand").fetchone() is not None
            if before != demanded:
                db.execute("INSERT INTO key_demand VALUES (1)" if demanded else "DELETE FROM key_demand")
                db.execute(_COUNT)

        await self._database.change(write)

    async def touch(self, used: Mapping[str, int]) -> None:
        """Store when keys were last used, by id."""

        # Not counted as a change: all processes would read all keys again, every time that one is used.
        def write(db: SqlConnection) -> None:
            db.executemany("UPDATE api_keys SET last_used = ? WHERE id = ?", [(when, id) for id, when in used.items()])

        await self._database.change(write)


def _number(db: SqlConnection) -> int:
    row = db.execute("SELECT number FROM api_key_changes WHERE one = 1").fetchone()
    return int(row[0]) if row else 0
