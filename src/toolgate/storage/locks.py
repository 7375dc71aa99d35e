"""Which node has which conversation: one at a time, for as long as it says so.

A node that dies loses what it had when its time is over, or as soon as it is known to be dead. One that slept through its
time finds out when it writes.
Within a node, who has what is its own affair: a lock that it takes again replaces its former one.
"""

import time
from collections.abc import Callable, Collection
from itertools import count

from toolgate.conversation.ids import mint
from toolgate.storage.database import Connection, Database

_HELD = "SELECT holder FROM conversation_locks WHERE conversation = ?"
_TAKE = """
INSERT INTO conversation_locks (conversation, holder, expires) VALUES (?, ?, ?)
ON CONFLICT (conversation) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
"""
_RENEW = "UPDATE conversation_locks SET expires = ? WHERE conversation = ? AND holder = ?"
_LEAVE = "DELETE FROM conversation_locks WHERE conversation = ? AND holder = ?"


class ConversationLocks:
    """The locks of one node."""

    def __init__(
        self,
        database: Database,
        *,
        node: str | None = None,
        is_gone: Callable[[str], bool] = lambda node: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`is_gone` knows of nodes that certainly live no more: what they had is free at once."""
        self._database = database
        self._now = now
        self._node = node or mint(16)
        self._is_gone = is_gone
        self._numbers = count(1)
        self._taken: dict[str, str] = {}

    async def take(self, conversation: str, seconds: float) -> str | None:
        """Have a conversation for so long; the holder's name, or None if another node has it."""
        now, holder = self._now(), f"{self._node}/{next(self._numbers)}"

        def write(db: Connection) -> bool:
            db.execute("DELETE FROM conversation_locks WHERE expires < ?", (now,))
            held = self._holder(db, conversation)
            if held is not None and _node(held) != self._node:
                return False
            db.execute(_TAKE, (conversation, holder, now + seconds))
            return True

        if not await self._database.change(write):
            return None
        self._taken[conversation] = holder
        return holder

    async def renew(self, conversations: Collection[str], seconds: float) -> None:
        """Have them for so long from now, those that are not lost."""
        rows = [(self._now() + seconds, one, self._taken[one]) for one in conversations if one in self._taken]
        await self._database.change(lambda db: db.executemany(_RENEW, rows) and None)

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
        """Who has it; what a node that is gone had is nobody's."""
        row = db.execute(_HELD, (conversation,)).fetchone()
        return row[0] if row and not self._is_gone(_node(row[0])) else None


def _node(holder: str) -> str:
    return holder.rpartition("/")[0]
