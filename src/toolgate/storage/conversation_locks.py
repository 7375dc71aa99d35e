"""Store which node has locked which conversation, with a lease that the node renews.

The lock of a node that dies is free when its lease was not renewed in time, or as soon as the node is known to be dead. A
node that slept through its lease finds out when it writes. Clocks that can be set are not compared (`observed_leases.py`).
Within a node a lock that is acquired again replaces the former one.
"""

import time
from collections.abc import Callable, Collection
from itertools import count

from toolgate.conversation.random_ids import random_suffix
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ObservedLeases

_HELD = "SELECT holder, expires FROM conversation_locks WHERE conversation = ?"
_ALL = "SELECT conversation, holder, expires FROM conversation_locks"
_ACQUIRE = """
INSERT INTO conversation_locks (conversation, holder, expires) VALUES (?, ?, ?)
ON CONFLICT (conversation) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
"""
_RENEW = "UPDATE conversation_locks SET expires = ? WHERE conversation = ? AND holder = ?"
_RELEASE = "DELETE FROM conversation_locks WHERE conversation = ? AND holder = ?"
_CLEAR = "DELETE FROM conversation_locks WHERE conversation = ? AND holder = ? AND expires = ?"

# Seconds after which the lock of a node that died is free again.
LEASE_SECONDS = 20.0


class ConversationLocks:
    """The conversation locks of one node."""

    def __init__(
        self,
        database: Database,
        *,
        node: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        is_gone: Callable[[str], bool] = lambda node: False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_gone` knows nodes that have certainly ended: their locks are free at once."""
        self._database = database
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._node = node or random_suffix(16)
        self._is_gone = is_gone
        self._watch = ObservedLeases(steady)
        self._numbers = count(1)
        self._held: dict[str, str] = {}

    async def acquire(self, conversation: str) -> str | None:
        """Lock a conversation and return the name of the holder, or None if another node has it."""
        holder = f"{self._node}/{next(self._numbers)}"
        row = (conversation, holder, self._clock() + self._lease_seconds)

        def write(db: SqlConnection) -> bool:
            held = self._holder(db, conversation)
            if held is not None and _node(held) != self._node:
                return False
            db.execute(_ACQUIRE, row)
            return True

        if not await self._database.change(write):
            return None
        self._held[conversation] = holder
        return holder

    async def renew(self, conversations: Collection[str]) -> None:
        """Renew those locks that are not lost, and delete those of nodes that have not renewed theirs."""
        until = self._clock() + self._lease_seconds
        rows = [(until, one, self._held[one]) for one in conversations if one in self._held]
        await self._database.change(lambda db: db.executemany(_RENEW, rows) and None)
        found = await self._database.read(lambda db: db.execute(_ALL).fetchall())
        # Deleted only with the `expires` that was read: its node may have renewed it since.
        if abandoned := [tuple(row) for row in found if self._is_free(*row)]:
            await self._database.change(lambda db: db.executemany(_CLEAR, abandoned) and None)

    async def release(self, conversation: str, holder: str) -> None:
        """Unlock a conversation."""
        self.forget(conversation, holder)
        await self._database.change(lambda db: db.execute(_RELEASE, (conversation, holder)) and None)

    def forget(self, conversation: str, holder: str) -> None:
        """Do not renew this lock any more."""
        if self._held.get(conversation) == holder:
            del self._held[conversation]

    def releasing(self, conversation: str) -> Callable[[SqlConnection], bool]:
        """Return the write that unlocks it; it returns false if the lock was lost to another node."""
        held = self._held.get(conversation)

        def write(db: SqlConnection) -> bool:
            if self._holder(db, conversation) != held:
                return False
            db.execute(_RELEASE, (conversation, held))
            return True

        return write

    def _holder(self, db: SqlConnection, conversation: str) -> str | None:
        """Return the holder of a lock that is still valid."""
        row = db.execute(_HELD, (conversation,)).fetchone()
        return row[0] if row and not self._is_free(conversation, *row) else None

    def _is_free(self, conversation: str, holder: str, expires: float) -> bool:
        if _node(holder) == self._node:
            return False
        return self._watch.age(conversation, (holder, expires)) >= self._lease_seconds or self._is_gone(_node(holder))


def _node(holder: str) -> str:
    return holder.rpartition("/")[0]
