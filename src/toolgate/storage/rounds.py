"""What runs did that their clients do not see: turns in which the server's tools were called beside the client's
own, and runs that were cut off or wait for a person.

A turn is found by the calls that the client comes back with, a run by the request that began it.
"""

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Message
from toolgate.storage.database import Connection, Database
from toolgate.storage.sightings import Jumps

KEPT_SECONDS = 7 * 24 * 3600.0
_PRUNE_EVERY = 64
"""Seldom, because who looks at the old ones collides with everybody who adds a new one."""

_SELECT = "SELECT key, messages, started FROM rounds WHERE owner = ? AND created > ? AND key IN (%s)"
_KEEP = """
INSERT INTO rounds (owner, key, created, messages, started) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (owner, key) DO UPDATE SET messages = excluded.messages, created = excluded.created
"""
_messages = msgspec.json.Decoder(tuple[Message, ...])
_started = msgspec.json.Decoder(list[str])


_NAME = "\0"
"""Stands before the name of the run, which is kept among the calls that had begun; no call's id begins so."""


class KeptRounds(Struct, frozen=True):
    """The messages that were said and done, the calls that had begun, and the name by which the run asked for consent."""

    messages: tuple[Message, ...]
    started: frozenset[str] = frozenset()
    run: str = ""


class RoundStore:
    """Keeps rounds for a week; nobody finds another's."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._jumps = Jumps(clock, steady)
        self._kept = 0

    async def find(self, owner: str, keys: Iterable[str], within: float = KEPT_SECONDS) -> dict[str, KeptRounds]:
        """What was kept under these keys within so many seconds, which do not pass because a clock is set forward."""
        asked = list(keys)
        if not asked:
            return {}
        query = _SELECT % ", ".join("?" * len(asked))
        oldest = self._clock() - within - self._jumps.forward(within)
        rows = await self._database.do(lambda db: db.execute(query, (owner, oldest, *asked)).fetchall())
        return {key: _kept(said, _started.decode(begun)) for key, said, begun in rows}

    async def keep(
        self, owner: str, keys: Sequence[str], messages: Sequence[Message], forget: Sequence[str] = (), run: str = ""
    ) -> None:
        """Keep these messages under every key, and nothing any more under those to forget.

        The name of the `run` is that under which the messages of a key were kept first.
        """
        now, written = self._clock(), msgspec.json.encode(messages)
        begun = msgspec.json.encode([_NAME + run] if run else [])
        kept = [(owner, key, now, written, begun) for key in keys]
        prune = self._kept % _PRUNE_EVERY == 0
        self._kept += 1
        dropped = [(owner, key) for key in forget]

        def write(db: Connection) -> None:
            db.executemany(_KEEP, kept)
            db.executemany("DELETE FROM rounds WHERE owner = ? AND key = ?", dropped)
            if prune:
                db.execute("DELETE FROM rounds WHERE created < ?", (now - KEPT_SECONDS,))

        await self._database.change(write)

    async def start(self, owner: str, key: str, call_id: str) -> None:
        """Remember that a call has begun; once this returns it survives a crash."""

        def write(db: Connection) -> None:
            found = db.execute("SELECT started FROM rounds WHERE owner = ? AND key = ?", (owner, key)).fetchone()
            if found is not None:
                begun = msgspec.json.encode([*_started.decode(found[0]), call_id])
                db.execute("UPDATE rounds SET started = ? WHERE owner = ? AND key = ?", (begun, owner, key))

        await self._database.change(write)


def _kept(said: bytes, begun: Sequence[str]) -> KeptRounds:
    run = next((one[1:] for one in begun if one.startswith(_NAME)), "")
    return KeptRounds(_messages.decode(said), frozenset([one for one in begun if not one.startswith(_NAME)]), run)
