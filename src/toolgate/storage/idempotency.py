"""Answers under the idempotency keys of their requests.

A key is claimed before its request is carried out. A claim is a lease: who holds it renews it, and when the holder died
somebody else takes it over, having seen for long enough that it is not renewed (`storage/sightings.py`). Only the holder can
keep an answer, so one who was asleep too long changes nothing.
"""

import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from toolgate.storage.database import Connection, Database
from toolgate.storage.sightings import Sightings

DAY = 86_400.0
_PRUNE_EVERY = 256
"""Seldom, because who looks at the old ones collides with everybody who adds a new one."""


class KeptAnswer(Struct, frozen=True, array_like=True):
    """An answer as it was sent; a body that was too large to keep is None."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    streamed: bool = False


class Claimed(Struct, frozen=True):
    """The request is to be carried out, by us."""


class Busy(Struct, frozen=True):
    """Somebody else is carrying it out."""


class Another(Struct, frozen=True):
    """The key was used for another request."""


Claim: TypeAlias = Claimed | Busy | Another | KeptAnswer


class IdempotencyStore:
    """Keeps answers for a day, each for the caller who asked."""

    def __init__(
        self,
        database: Database,
        *,
        lease: float = 30.0,
        keep: float = DAY,
        is_gone: Callable[[str], bool] = lambda holder: False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_gone` knows of holders that certainly live no more, so that nobody has to wait for their leases."""
        self.lease = lease
        self._database = database
        self._keep = keep
        self._is_gone = is_gone
        self._clock = clock
        self._sightings = Sightings(steady)
        self._claims = 0

    async def claim(self, owner: str, key: str, digest: bytes, holder: str) -> Claim:
        """Claim a key for a request of this digest; what became of it if that cannot be."""
        now, prune = self._clock(), self._claims % _PRUNE_EVERY == 0
        self._claims += 1

        def decide(db: Connection) -> Claim:
            if prune:
                db.execute(_FORGET, (now - self._keep,))
            claimed = db.execute(_CLAIM, (owner, key, digest, holder, now + self.lease, now, now - self._keep))
            if claimed.rowcount == 1:
                return Claimed()
            known, leased_until, answer, held_by = db.execute(_SELECT, (owner, key)).fetchone()
            if known != digest:
                return Another()
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=KeptAnswer)
            if self._sightings.age((owner, key), (held_by, leased_until)) < self.lease and not self._is_gone(held_by):
                return Busy()
            db.execute(_TAKE_OVER, (holder, now + self.lease, owner, key))
            return Claimed()

        return await self._database.change(decide)

    async def renew(self, owner: str, key: str, holder: str) -> bool:
        """Hold the claim for longer; false if it was lost."""
        values = (self._clock() + self.lease, owner, key, holder)
        return await self._database.change(lambda db: db.execute(_RENEW, values).rowcount == 1)

    async def keep(self, owner: str, key: str, holder: str, answer: KeptAnswer) -> bool:
        """Keep the answer; false if the claim was lost."""
        values = (msgspec.msgpack.encode(answer), owner, key, holder)
        return await self._database.change(lambda db: db.execute(_KEEP, values).rowcount == 1)

    async def release(self, owner: str, key: str, holder: str) -> None:
        """Give the claim up: the next to come carries the request out."""
        await self._database.change(lambda db: db.execute(_RELEASE, (owner, key, holder)))


_FORGET = "DELETE FROM idempotency WHERE created < ?"
_SELECT = "SELECT digest, leased_until, answer, holder FROM idempotency WHERE owner = ? AND key = ?"
_CLAIM = """
INSERT INTO idempotency (owner, key, digest, holder, leased_until, created) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, key) DO UPDATE SET digest = excluded.digest, holder = excluded.holder,
    leased_until = excluded.leased_until, created = excluded.created, answer = NULL
WHERE idempotency.created < ?
"""
"""Written before anything is read: two who claim different keys then do not collide."""
_TAKE_OVER = "UPDATE idempotency SET holder = ?, leased_until = ? WHERE owner = ? AND key = ?"
_HOLDING = "WHERE owner = ? AND key = ? AND holder = ? AND answer IS NULL"
_RENEW = f"UPDATE idempotency SET leased_until = ? {_HOLDING}"  # noqa: S608 - constants
_KEEP = f"UPDATE idempotency SET answer = ? {_HOLDING}"  # noqa: S608 - constants
_RELEASE = f"DELETE FROM idempotency {_HOLDING}"  # noqa: S608 - constants
