"""Which node has which conversation: one at a time, for as long as it says so.

A node that dies loses what it had when it was not heard of for as long, or as soon as it is known to be dead. One that slept
through its time finds out when it writes. Nobody's clock on the wall has a say (`storage/sightings.py`).
Within a node, who has what is its own affair: a lock that it takes again replaces its former one.
"""

import time
from collections.abc import Callable, Collection
from itertools import count

from toolgate.conversation.ids import mint
from toolgate.storage.database import Connection, Database
from toolgate.storage.sightings import Sightings

_HELD = "SELECT holder, expires FROM conversation_locks WHERE conversation = ?"
_ALL = "SELECT conversation, holder, expires FROM conversation_locks"
_TAKE = """
INSERT INTO conversation_locks (conversation, holder, expires) VALUES (?, ?, ?)
ON CONFLICT (conversation) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
"""
_RENEW = "UPDATE conversation_locks SET expires = ? WHERE conversation = ? AND holder = ?"
_LEAVE = "DELETE FROM conversation_locks WHERE conversation = ? AND holder = ?"
_CLEAR = "DELETE FROM conversation_locks WHERE conversation = ? AND holder = ? AND expires = ?"

LEASE = 20.0
"""Seconds after which the conversation of a node that died is free again."""


class ConversationLocks:
    """The locks of one node."""

    def __init__(
        self,
        database: Database,
        *,
        node: str | None = None,
        lease: float = LEASE,
        is_gone: Callable[[str], bool] = lambda node: False,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_gone` knows of nodes that certainly live no more: what they had is free at once."""
        self._database = database
        self._now = now
        self._lease = lease
        self._node = node or mint(16)
        self._is_gone = is_gone
        self._sightings = Sightings(steady)
        self._numbers = count(1)
        self._taken: dict[str, str] = {}

    async def take(self, conversation: str) -> str | None:
        """Have a conversation until it is not renewed; the holder's name, or None if another node has it."""
        holder = f"{self._node}/{next(self._numbers)}"
        row = (conversation, holder, self._now() + self._lease)

        def write(db: Connection) -> bool:
            held = self._holder(db, conversation)
            if held is not None and _node(held) != self._node:
                return False
            db.execute(_TAKE, row)
            return True

        if not await self._database.change(write):
            return None
        self._taken[conversation] = holder
        return holder

    async def renew(self, conversations: Collection[str]) -> None:
        """Have those for longer that are not lost, and clear away what nodes had that are not heard of any more."""
        until = self._now() + self._lease
        rows = [(until, one, self._taken[one]) for one in conversations if one in self._taken]
        await self._database.change(lambda db: db.executemany(_RENEW, rows) and None)
        found = await self._database.do(lambda db: db.execute(_ALL).fetchall())
        if left := [tuple(row) for row in found if self._is_free(*row)]:
            await self._database.change(lambda db: db.executemany(_CLEAR, left) and None)

    async def leave(self, conversation: str, holder: str) -> None:
        """Have it no longer."""
        self.forget(conversation, holder)
        await self._database.change(lambda db: db.execute(_LEAVE, (conversation, holder)) and None)

    def forget(self, conversation: str, holder: str) -> None:
        """The holder wants nothing of it any more."""
        if self._taken.get(conversation) == holder:
            del self._taken[conversation]

    def passing(self, conversation: str) -> Callable[[Connection], bool]:
        """Gives it back amid a change; false, and nothing may be written, if it was taken and lost, or is another's."""
        mine = self._taken.get(conversation)

        def passed(db: Connection) -> bool:
            if self._holder(db, conversation) != mine:
                return False
            db.execute(_LEAVE, (conversation, mine))
            return True

        return passed

    def _holder(self, db: Connection, conversation: str) -> str | None:
        """Who has it; what a node had that is gone, or not heard of any more, is nobody's."""
        row = db.execute(_HELD, (conversation,)).fetchone()
        return row[0] if row and not self._is_free(conversation, *row) else None

    def _is_free(self, conversation: str, holder: str, expires: float) -> bool:
        if _node(holder) == self._node:
            return False
        return self._sightings.age(conversation, (holder, expires)) >= self._lease or self._is_gone(_node(holder))


def _node(holder: str) -> str:
    return holder.rpartition("/")[0]
