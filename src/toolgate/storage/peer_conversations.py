"""Store which conversation of a stateful peer has which history.

A conversation is stored only while it is not in use: taking it deletes it, and it is stored again under its new digest. Only
digests are stored, no text. Knows nothing of peers but their names.
"""

import time
from collections.abc import Callable

from toolgate.storage.database import Database, SqlConnection

KEPT_SECONDS = 30 * 24 * 3600.0
MOST = 100_000
# Seldom: what is too old is not found in any case, so that deleting it may wait.
_PRUNE_EVERY = 256

_TAKE = """
DELETE FROM peer_conversations WHERE (peer, conversation) = (
    SELECT peer, conversation FROM peer_conversations
    WHERE peer = ? AND owner = ? AND digest = ? AND used > ? ORDER BY used DESC LIMIT 1
) RETURNING conversation
"""
_KEEP = """
INSERT INTO peer_conversations (peer, conversation, owner, digest, used) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (peer, conversation) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, used = excluded.used
"""
_OLD = "SELECT peer, conversation FROM peer_conversations WHERE used <= ? ORDER BY used LIMIT ?"
_CROWD_OUT = """
DELETE FROM peer_conversations WHERE used <= (
    SELECT used FROM peer_conversations ORDER BY used DESC LIMIT 1 OFFSET ?
)
"""


def delete_expired_peer_conversations(db: SqlConnection, now: float, most: int) -> int:
    """Delete at most so many conversations that were not used for 30 days, and return how many."""
    old = db.execute(_OLD, (now - KEPT_SECONDS, most)).fetchall()
    delete = "DELETE FROM peer_conversations WHERE peer = ? AND conversation = ?"
    db.executemany(delete, [tuple(row) for row in old])
    return len(old)


class PeerConversationStore:
    """Stores conversations for 30 days, and no more than `most`; an owner finds only its own."""

    def __init__(self, database: Database, *, most: int = MOST, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._most = most
        self._clock = clock
        self._kept = 0

    async def take(self, peer: str, owner: str, digest: str) -> str | None:
        """Delete and return the conversation used last among those of this digest, so that no other request gets it."""
        row = (peer, owner, digest, self._clock() - KEPT_SECONDS)
        # All rows are fetched, so that the statement is over before its transaction is.
        rows = await self._database.change(lambda db: db.execute(_TAKE, row).fetchall())
        return str(rows[0][0]) if rows else None

    async def keep(self, peer: str, owner: str, digest: str, conversation: str) -> None:
        """Store a conversation under this digest; once this returns it survives a crash."""
        now = self._clock()
        row = (peer, conversation, owner, digest, now)
        prune = self._kept % _PRUNE_EVERY == 0
        self._kept += 1

        def write(db: SqlConnection) -> None:
            db.execute(_KEEP, row)
            if prune:
                db.execute("DELETE FROM peer_conversations WHERE used <= ?", (now - KEPT_SECONDS,))
                db.execute(_CROWD_OUT, (self._most,))

        await self._database.change(write)
