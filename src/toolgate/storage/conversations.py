"""Store conversation objects of the Responses API and their items.

Items keep their order. A conversation of another owner looks like one that does not exist. The content of items is not read
here.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import Conflict
from toolgate.storage.conversation_locks import ConversationLocks
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.responses import NO_LIMITS, HistoryLimits, Write
from toolgate.storage.sql_engine import batches, fitting, placeholders

Order: TypeAlias = Literal["asc", "desc"]
Item: TypeAlias = dict[str, Any]

_ALL = """
SELECT item FROM conversation_items
WHERE conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?) ORDER BY place
"""
_SIZE = """
SELECT count(*), coalesce(sum(bytes), 0) FROM conversation_items
WHERE conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?)
"""
_PLACES = """
SELECT conversation_items.id, conversation, bytes
FROM conversation_items JOIN conversations ON conversations.id = conversation
WHERE owner = ? AND conversation_items.id IN (%s)
"""
_TAKEN = """
SELECT id FROM conversation_items
WHERE conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?) AND id IN (%s)
"""
_ONE = "SELECT item FROM conversation_items WHERE conversation = ? AND id = ?"
_OWNED = "SELECT 1 FROM conversations WHERE id = ? AND owner = ?"
_ITEM = """
SELECT item FROM conversation_items
WHERE id = ? AND conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?)
"""
_REMOVE = """
DELETE FROM conversation_items
WHERE id = ? AND conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?)
"""
# Places count from 0, and none is 2^63 - 1: without `after` a page begins before the first or behind the last item.
_PAGES: dict[Order, str] = {
    "asc": """
    SELECT item FROM conversation_items
    WHERE conversation = ? AND conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?)
    AND place > coalesce((SELECT place FROM conversation_items WHERE conversation = ? AND id = ?), -1)
    ORDER BY place LIMIT ?
    """,
    "desc": """
    SELECT item FROM conversation_items
    WHERE conversation = ? AND conversation = (SELECT id FROM conversations WHERE id = ? AND owner = ?)
    AND place < coalesce((SELECT place FROM conversation_items WHERE conversation = ? AND id = ?), 9223372036854775807)
    ORDER BY place DESC LIMIT ?
    """,
}


class StoredConversation(Struct, frozen=True):
    """A conversation without its items."""

    id: str
    owner: str
    created: int
    metadata: dict[str, str]


class ConversationStore:
    """Stores conversations; every query names their owner."""

    def __init__(self, database: Database, locks: ConversationLocks | None = None) -> None:
        self._database = database
        self.locks = locks or ConversationLocks(database)

    async def create(self, conversation: StoredConversation, items: Sequence[Item]) -> None:
        """Store a new conversation with these items, each of which has an id."""
        one = conversation
        row = (one.id, one.owner, one.created, msgspec.json.encode(one.metadata))

        def write(db: SqlConnection) -> None:
            db.execute("INSERT INTO conversations (id, owner, created, metadata) VALUES (?, ?, ?, ?)", row)
            _append(db, one.id, items)

        await self._database.change(write)

    async def load(self, owner: str, id: str) -> StoredConversation | None:
        """Return the conversation of this id, if this owner has one."""
        select = "SELECT id, owner, created, metadata FROM conversations WHERE id = ? AND owner = ?"
        rows = await self._database.read(lambda db: db.execute(select, (id, owner)).fetchall())
        if not rows:
            return None
        id, owner, created, metadata = rows[0]
        return StoredConversation(id, owner, created, msgspec.json.decode(metadata))

    async def update(self, owner: str, id: str, metadata: dict[str, str]) -> bool:
        """Change the metadata of a conversation; false if this owner has none of this id."""
        row = (msgspec.json.encode(metadata), id, owner)
        update = "UPDATE conversations SET metadata = ? WHERE id = ? AND owner = ?"
        return await self._database.change(lambda db: db.execute(update, row).rowcount == 1)

    async def delete(self, owner: str, id: str) -> bool:
        """Delete a conversation and its items; false if this owner has none of this id."""

        def forget(db: SqlConnection) -> bool:
            if db.execute("DELETE FROM conversations WHERE id = ? AND owner = ?", (id, owner)).rowcount == 0:
                return False
            for table in ("conversation_items", "conversation_locks"):
                db.execute(f"DELETE FROM {table} WHERE conversation = ?", (id,))  # noqa: S608 - our own names
            return True

        return await self._database.change(forget)

    def appending(self, owner: str, id: str, items: Sequence[Item]) -> Write:
        """Return the write that appends items and unlocks the conversation; it returns false if that was deleted meanwhile.

        Conflict, and nothing of the transaction is written, if another node has or had locked it meanwhile.
        """
        release = self.locks.releasing(id)

        def write(db: SqlConnection) -> bool:
            if db.execute(_OWNED, (id, owner)).fetchone() is None:
                return False
            if not release(db):
                raise Conflict(
                    f"Another node has added to the conversation {id!r} meanwhile, so that nothing was added; try again.",
                    param="conversation",
                    code="conversation_locked",
                    retry_after=1,
                )
            _append(db, id, items)
            return True

        return write

    async def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        """Append items; false if this owner has no such conversation, Conflict if another node has locked it."""
        return bool(await self._database.change(self.appending(owner, id, items)))

    async def items(self, owner: str, id: str, limits: HistoryLimits = NO_LIMITS) -> list[Item]:
        """Return all items, oldest first; InvalidRequest, before any is read, if they are larger than the limits."""

        def read(db: SqlConnection) -> list[Item]:
            count, size = db.execute(_SIZE, (id, owner)).fetchone()
            limits.check(int(size), count, f"The conversation {id[:100]!r}", "conversation")
            return [msgspec.json.decode(row[0]) for row in db.execute(_ALL, (id, owner)).fetchall()]

        return await self._database.read(read)

    async def page(self, owner: str, id: str, order: Order, after: str | None, limit: int) -> list[Item]:
        """Return at most so many items in this order, those after the one named `after`."""
        select, values = _PAGES[order], (id, id, owner, id, after, limit)
        return await self._database.read(
            lambda db: [msgspec.json.decode(row[0]) for row in db.execute(select, values).fetchall()]
        )

    async def fitting(self, owner: str, id: str, order: Order, after: str | None, limit: int) -> int:
        """Return how many of the items of such a page fit its size limit."""
        # Only the column `bytes` is read: the items themselves may be many megabytes.
        select, values = _PAGES[order].replace("SELECT item", "SELECT bytes", 1), (id, id, owner, id, after, limit)
        return await self._database.read(lambda db: fitting(row[0] for row in db.execute(select, values).fetchall()))

    async def item(self, owner: str, id: str, item: str) -> Item | None:
        """Return one item of a conversation."""
        rows = await self._database.read(lambda db: db.execute(_ITEM, (item, id, owner)).fetchall())
        return msgspec.json.decode(rows[0][0]) if rows else None

    async def taken_ids(self, owner: str, id: str, items: Sequence[str]) -> set[str]:
        """Return those of these ids that items of a conversation have."""

        def read(db: SqlConnection) -> set[str]:
            return {
                row[0]
                for some in batches(items)
                for row in db.execute(_TAKEN % placeholders(some), (id, owner, *some)).fetchall()
            }

        return await self._database.read(read)

    async def named(
        self, owner: str, items: Sequence[str], limits: HistoryLimits = NO_LIMITS
    ) -> dict[str, tuple[Item, int]]:
        """Return the items of these ids in any conversation of this owner, each with its size.

        InvalidRequest, before any is read, if they are larger than the limits.
        """

        def read(db: SqlConnection) -> dict[str, tuple[Item, int]]:
            places: dict[str, tuple[str, int]] = {}
            for some in batches(items):
                for id, conversation, size in db.execute(_PLACES % placeholders(some), (owner, *some)).fetchall():
                    places[id] = (conversation, size)
            limits.check(sum(size for _, size in places.values()), 0, "What the item references name", "input")
            # One row after the other: no other thread runs while a row is decoded, and a row may be large.
            return {
                id: (msgspec.json.decode(db.execute(_ONE, (conversation, id)).fetchone()[0]), size)
                for id, (conversation, size) in places.items()
            }

        return await self._database.read(read)

    async def remove(self, owner: str, id: str, item: str) -> bool:
        """Delete one item; false if it is not there."""
        return await self._database.change(lambda db: db.execute(_REMOVE, (item, id, owner)).rowcount == 1)


def _append(db: SqlConnection, id: str, items: Sequence[Item]) -> None:
    """Append items; one whose id is there already keeps its place and gets the new content."""
    last = db.execute("SELECT max(place) FROM conversation_items WHERE conversation = ?", (id,)).fetchone()[0]
    place = 0 if last is None else last + 1
    for item in items:
        written = msgspec.json.encode(item)
        db.execute(
            "INSERT INTO conversation_items (conversation, place, id, item, bytes) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id, conversation) DO UPDATE SET item = excluded.item, bytes = excluded.bytes",
            (id, place, item["id"], written, len(written)),
        )
        place += 1
