"""Keys that were made while the server ran: who holds each, the digest it is known by, and what it may do.

The key itself is never here. Whoever changes a row counts the change in the same transaction, so that other processes see
by one number that they must read again. What a key may do is JSON, and nobody's business here.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Connection, Database

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
    """A key as it is kept; moments are whole seconds, `shown` is what may be shown of the key itself.

    `former` is the digest of the secret it had before, which opens the same until `former_until`.
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
    """Keeps keys. A name is taken for ever: what its first holder owns must not pass to another."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def number(self) -> int:
        """How often anything was changed."""
        return await self._database.do(_number)

    async def all(self) -> tuple[int, list[StoredKey]]:
        """Every key, the oldest first, and a number of changes that is never ahead of them."""

        def read(db: Connection) -> tuple[int, list[StoredKey]]:
            number = _number(db)
            rows = db.execute(f"SELECT {_FIELDS} FROM api_keys ORDER BY created, id").fetchall()  # noqa: S608 - constants
            return number, [StoredKey(*row) for row in rows]

        return await self._database.do(read)

    async def create(self, key: StoredKey) -> bool:
        """Keep a new key; False if its name was ever taken."""

        def write(db: Connection) -> bool:
            made = db.execute(_CREATE, astuple(key)).rowcount == 1
            if made:
                db.execute(_COUNT)
            return made

        return await self._database.change(write)

    async def change(self, id: str, edit: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        """Change a key to what `edit` makes of it as it is now; None if there is none. The name and id stay."""

        def write(db: Connection) -> StoredKey | None:
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
        """Whether keys were demanded by a configuration since it was last said that none need be."""
        return await self._database.do(lambda db: db.execute("SELECT 1 FROM key_demand").fetchone() is not None)

    async def demand(self, demanded: bool) -> None:
        """Remember whether keys are demanded; other processes see that as a change."""

        def write(db: Connection) -> None:
            before = db.execute("SELECT 1 FROM key_demand").fetchone() is not None
            if before != demanded:
                db.execute("INSERT INTO key_demand VALUES (1)" if demanded else "DELETE FROM key_demand")
                db.execute(_COUNT)

        await self._database.change(write)

    async def touch(self, used: Mapping[str, int]) -> None:
        """Note when keys were last used, by id; this counts as no change."""

        def write(db: Connection) -> None:
            db.executemany("UPDATE api_keys SET last_used = ? WHERE id = ?", [(when, id) for id, when in used.items()])

        await self._database.change(write)


def _number(db: Connection) -> int:
    row = db.execute("SELECT number FROM api_key_changes WHERE one = 1").fetchone()
    return int(row[0]) if row else 0
