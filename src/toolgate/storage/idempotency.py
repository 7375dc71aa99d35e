"""Store answers under the idempotency keys of their requests.

A key is claimed before its request is carried out. A claim is a lease: its holder renews it, and another takes over the
claim of a dead one once it was not renewed for long enough (`observed_leases.py`). Only the holder can store an answer,
so that a node that slept too long changes nothing.

An answer is encrypted under a secret that is derived from the request. Answers of earlier versions are not encrypted.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ClockJumps, ObservedLeases
from toolgate.storage.row_encryption import decrypt, encrypt

_T = TypeVar("_T")

DAY = 86_400.0
# Seldom, because reading old rows conflicts with every transaction that adds one.
_PRUNE_EVERY = 256
# No answer of an earlier version begins so: those begin as an array of MessagePack does.
_ENCRYPTED = b"sealed:"
# Bytes above which an answer is encrypted and decrypted in a thread, to not hold up the event loop.
_LARGE = 64 * 1024


class StoredIdempotentAnswer(Struct, frozen=True, array_like=True):
    """An answer as it was sent; a body that was too large to store is None."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    streamed: bool = False


class IdempotencyClaimGranted(Struct, frozen=True):
    """This node carries the request out."""


class IdempotencyClaimPending(Struct, frozen=True):
    """Another request of this key is being carried out."""


class IdempotencyClaimMismatch(Struct, frozen=True):
    """The key was used for another request."""


Claim: TypeAlias = IdempotencyClaimGranted | IdempotencyClaimPending | IdempotencyClaimMismatch | StoredIdempotentAnswer


class IdempotencyStore:
    """Stores answers for a day, each for its caller."""

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
        """`is_gone` knows nodes that have certainly ended, so that their leases need not run out."""
        self.lease = lease
        self._database = database
        self._keep = keep
        self._is_gone = is_gone
        self._clock = clock
        self._watch = ObservedLeases(steady)
        self._jumps = ClockJumps(clock, steady)
        self._claims = 0

    async def claim(self, owner: str, key: str, digest: bytes, holder: str, secret: bytes) -> Claim:
        """Claim a key for a request of this digest; otherwise return what is stored under it.

        `secret` decrypts the answer.
        """
        now, prune = self._clock(), self._claims % _PRUNE_EVERY == 0
        # By a clock that was set forward, a request of a minute ago would look too old to be known.
        oldest = now - self._keep - self._jumps.forward(self._keep)
        self._claims += 1

        def decide(db: SqlConnection) -> Claim | bytes:
            if prune:
                db.execute(_FORGET, (oldest,))
            claimed = db.execute(_CLAIM, (owner, key, digest, holder, now + self.lease, now, oldest))
            if claimed.rowcount == 1:
                return IdempotencyClaimGranted()
            known, leased_until, answer, held_by = db.execute(_SELECT, (owner, key)).fetchone()
            # Before the answer: another request under the same key must not get it, nor could it decrypt it.
            if known != digest:
                return IdempotencyClaimMismatch()
            if answer is not None:
                return bytes(answer)
            if self._watch.age((owner, key), (held_by, leased_until)) < self.lease and not self._is_gone(held_by):
                return IdempotencyClaimPending()
            db.execute(_TAKE_OVER, (holder, now + self.lease, owner, key))
            return IdempotencyClaimGranted()

        found = await self._database.change(decide)
        return await _in_thread_if_large(_decrypt, found, secret) if isinstance(found, bytes) else found

    async def renew(self, owner: str, key: str, holder: str) -> bool:
        """Renew the lease of a claim; false if it was lost."""
        values = (self._clock() + self.lease, owner, key, holder)
        return await self._database.change(lambda db: db.execute(_RENEW, values).rowcount == 1)

    async def keep(self, owner: str, key: str, holder: str, answer: StoredIdempotentAnswer, secret: bytes) -> bool:
        """Store the answer, encrypted under the secret; false if the claim was lost."""
        stored = await _in_thread_if_large(_encrypt, msgspec.msgpack.encode(answer), secret)
        values = (stored, owner, key, holder)
        return await self._database.change(lambda db: db.execute(_KEEP, values).rowcount == 1)

    async def release(self, owner: str, key: str, holder: str) -> None:
        """Give the claim up: the next request of this key is carried out."""
        await self._database.change(lambda db: db.execute(_RELEASE, (owner, key, holder)))


def delete_expired_answers(db: SqlConnection, now: float, most: int) -> int:
    """Delete at most so many answers that are older than a day, and return how many."""
    old = db.execute(_OLD, (now - DAY, most)).fetchall()
    db.executemany("DELETE FROM idempotency WHERE owner = ? AND key = ?", [tuple(row) for row in old])
    return len(old)


async def _in_thread_if_large(work: Callable[[bytes, bytes], _T], text: bytes, secret: bytes) -> _T:
    return work(text, secret) if len(text) <= _LARGE else await asyncio.to_thread(work, text, secret)


def _encrypt(answer: bytes, secret: bytes) -> bytes:
    return _ENCRYPTED + encrypt(secret, answer)


def _decrypt(stored: bytes, secret: bytes) -> StoredIdempotentAnswer:
    answer = decrypt(secret, stored[len(_ENCRYPTED) :]) if stored.startswith(_ENCRYPTED) else stored
    return msgspec.msgpack.decode(answer, type=StoredIdempotentAnswer)


_FORGET = "DELETE FROM idempotency WHERE created < ?"
_OLD = "SELECT owner, key FROM idempotency WHERE created < ? ORDER BY created LIMIT ?"
_SELECT = "SELECT digest, leased_until, answer, holder FROM idempotency WHERE owner = ? AND key = ?"
# Written before anything is read: claims of different keys then do not conflict. A row that is too old to be served is
# taken over as if it were deleted already.
_CLAIM = """
INSERT INTO idempotency (owner, key, digest, holder, leased_until, created) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, key) DO UPDATE SET digest = excluded.digest, holder = excluded.holder,
    leased_until = excluded.leased_until, created = excluded.created, answer = NULL
WHERE idempotency.created < ?
"""
_TAKE_OVER = "UPDATE idempotency SET holder = ?, leased_until = ? WHERE owner = ? AND key = ?"
_HOLDING = "WHERE owner = ? AND key = ? AND holder = ? AND answer IS NULL"
_RENEW = f"UPDATE idempotency SET leased_until = ? {_HOLDING}"  # noqa: S608 - constants
_KEEP = f"UPDATE idempotency SET answer = ? {_HOLDING}"  # noqa: S608 - constants
_RELEASE = f"DELETE FROM idempotency {_HOLDING}"  # noqa: S608 - constants
