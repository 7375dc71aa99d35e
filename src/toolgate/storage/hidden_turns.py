"""Store what runs did that their clients do not see: turns with calls of the server's tools beside the client's own, and
runs that were cut off or wait for an approval.

A turn is found by the calls that the client comes back with, a run by the request that started it. Each message is written
once: a turn grows by appending parts, and any number of keys lead to it.

A private turn, of a client that wants nothing stored, is encrypted under a secret of its own. That is stored for each key,
encrypted under a secret that is derived from the request or from the id of the call. The database alone does not reveal its
content.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Message
from toolgate.conversation.random_ids import random_suffix
from toolgate.conversation.surrogates import encode_repaired
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.observed_leases import ClockJumps
from toolgate.storage.row_encryption import UnreadableRow, decrypt, encrypt
from toolgate.storage.sql_engine import batches, placeholders

KEPT_SECONDS = 7 * 24 * 3600.0
# For a client that wants nothing stored (`store: false`): as long as it may take to come back with its results.
PRIVATE_SECONDS = 24 * 3600.0

# Of the turns that one request may bring back.
MOST_BYTES = 64 * 1024 * 1024

# About as much is encoded and decoded in one go: other threads can run in between.
_PART_BYTES = 256 * 1024

# Seldom, because reading old rows conflicts with every transaction that adds one; and few rows, because a request waits.
_PRUNE_EVERY = 64
_PRUNED = 200
_KEYS = """
SELECT key, turn, secret FROM turn_keys
WHERE owner = ? AND created > ? AND (secret IS NULL OR expires > ?) AND key IN (%s)
"""
_KEEP = """
INSERT INTO turn_keys (owner, key, turn, created, expires, secret) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, key) DO UPDATE SET
    turn = excluded.turn, created = excluded.created, expires = excluded.expires, secret = excluded.secret
"""
_APPEND = "INSERT INTO turn_parts (owner, turn, place, bytes, messages, started) VALUES (?, ?, ?, ?, ?, ?)"
_NEXT = "SELECT coalesce(max(place), -1) + 1 FROM turn_parts WHERE owner = ? AND turn = ?"
_PARTS = "SELECT messages, started FROM turn_parts WHERE owner = ? AND turn = ? ORDER BY place"
_SIZE = "SELECT coalesce(sum(bytes), 0) FROM turn_parts WHERE owner = ? AND turn = ?"
_TURN = "SELECT turn FROM turn_keys WHERE owner = ? AND key = ?"
_DROP = """
DELETE FROM turn_parts WHERE owner = ? AND turn = ?
    AND NOT EXISTS (SELECT 1 FROM turn_keys WHERE turn_keys.owner = ? AND turn_keys.turn = ?)
"""
_messages = msgspec.json.Decoder(tuple[Message, ...])
_started = msgspec.json.Decoder(list[str])
# The prefix of the run's id, which is stored among the calls that had started; no id of a call starts so.
_RUN = "\0"


class HiddenTurn(Struct, frozen=True):
    """The messages of a turn, the calls that had started, and the id under which its run asked for approvals.

    `turn` and `secret` are needed to append to it.
    """

    messages: tuple[Message, ...]
    started: frozenset[str] = frozenset()
    run: str = ""
    turn: str = ""
    secret: bytes | None = None


class HiddenTurnStore:
    """Stores turns for a week, private ones for a day; an owner finds only its own."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._jumps = ClockJumps(clock, steady)
        self._kept = 0

    async def find(
        self,
        owner: str,
        keys: Iterable[str],
        within: float = KEPT_SECONDS,
        *,
        secrets: Mapping[str, bytes] | None = None,
        most: int | None = None,
    ) -> dict[str, HiddenTurn]:
        """Return what was stored under these keys within so many seconds, which do not pass when a clock is set forward.

        `secrets` decrypt what is private, by key. InvalidRequest if there is more than `most` bytes of it.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        # By a clock that was set forward, everything would look older than it is.
        now, jump = self._clock(), self._jumps.forward(within)
        oldest, alive = now - within - jump, now - jump

        def read(db: SqlConnection) -> dict[str, HiddenTurn]:
            turn_of_key = _turns_of_keys(db, owner, wanted, oldest, alive, secrets or {})
            turns = dict(turn_of_key.values())
            if most is not None:
                _check_size(db, owner, turns, most)
            stored = {turn: _read_turn(db, owner, turn, secret) for turn, secret in turns.items()}
            return {key: stored[turn] for key, (turn, _) in turn_of_key.items()}

        return await self._database.read(read)

    async def keep(
        self,
        owner: str,
        keys: Sequence[str],
        messages: Sequence[Message],
        forget: Sequence[str] = (),
        run: str = "",
        *,
        turn: str = "",
        secret: bytes | None = None,
        secrets: Mapping[str, bytes] | None = None,
    ) -> None:
        """Append messages to a turn, let all these keys lead to it, and delete the keys to forget.

        Without a `turn` it is that of the first key, or a new one. With a `secret` the turn is private, and only the keys
        that have `secrets` of their own lead to it: of the others only their existence is stored.
        """
        now, added = self._clock(), tuple(messages)
        new_turn = "" if turn else random_suffix()
        prune = self._kept % _PRUNE_EVERY == 0
        expired = now - self._jumps.forward(KEPT_SECONDS)
        self._kept += 1
        expires = now + (KEPT_SECONDS if secret is None else PRIVATE_SECONDS)

        def row(key: str, turn: str) -> tuple[object, ...]:
            if secret is None:
                return (owner, key, turn, now, expires, None)
            if key_secret := (secrets or {}).get(key):
                return (owner, key, turn, now, expires, encrypt(key_secret, secret))
            # Such a key leads nowhere: its row only shows that the call was made, so that it is not made twice.
            return (owner, key, "", now, now + KEPT_SECONDS, None)

        def write(db: SqlConnection) -> None:
            former = _turns(db, owner, [*keys, *forget])
            target = turn or (former.get(keys[0]) if keys else None) or new_turn
            db.executemany(_KEEP, [row(key, target) for key in keys])
            db.executemany("DELETE FROM turn_keys WHERE owner = ? AND key = ?", [(owner, key) for key in forget])
            # Without a secret of its own none of these keys could decrypt what is stored of a private turn.
            if keys and (secret is None or any(key in (secrets or {}) for key in keys)):
                _append(db, owner, target, added, run=run, secret=secret)
            _drop(db, [(owner, one) for one in {*former.values()}])  # after the keys lead elsewhere or are deleted
            if prune:
                delete_expired_turns(db, expired, _PRUNED)

        await self._database.change(write)

    async def start(self, owner: str, key: str, call_id: str) -> None:
        """Store that a call has started; once this returns it survives a crash."""

        def write(db: SqlConnection) -> None:
            found = db.execute(_TURN, (owner, key)).fetchone()
            if found is not None:
                _append(db, owner, found[0], (), started=[call_id])

        await self._database.change(write)


def _turns_of_keys(
    db: SqlConnection, owner: str, keys: Sequence[str], oldest: float, alive: float, secrets: Mapping[str, bytes]
) -> dict[str, tuple[str, bytes | None]]:
    """Return the turn of each key, and the secret of a private one; those that cannot be decrypted are left out."""
    turn_of_key: dict[str, tuple[str, bytes | None]] = {}
    for some in batches(keys):
        for key, turn, secret in db.execute(_KEYS % placeholders(some), (owner, oldest, alive, *some)).fetchall():
            if secret is None:
                turn_of_key[key] = (turn, None)
            elif key in secrets:
                try:
                    turn_of_key[key] = (turn, decrypt(secrets[key], bytes(secret)))
                except UnreadableRow:
                    continue
    return turn_of_key


def _check_size(db: SqlConnection, owner: str, turns: Iterable[str], most: int) -> None:
    left = most
    for turn in turns:
        left -= db.execute(_SIZE, (owner, turn)).fetchone()[0]
        if left < 0:
            raise InvalidRequest(
                f"The earlier turns of this conversation in which server tools ran hold more than {most} bytes; "
                "send fewer of them.",
                code="context_length_exceeded",
            )


def _read_turn(db: SqlConnection, owner: str, turn: str, secret: bytes | None) -> HiddenTurn:
    messages: list[Message] = []
    begun: list[str] = []
    for part, started in db.execute(_PARTS, (owner, turn)).fetchall() if turn else ():
        messages += _messages.decode(decrypt(secret, bytes(part)) if secret and part else part or b"[]")
        begun += _started.decode(started)
    run = next((one[1:] for one in begun if one.startswith(_RUN)), "")
    started = frozenset([one for one in begun if not one.startswith(_RUN)])
    return HiddenTurn(tuple(messages), started, run, turn, secret)


def _append(
    db: SqlConnection,
    owner: str,
    turn: str,
    messages: Sequence[Message],
    *,
    started: Sequence[str] = (),
    run: str = "",
    secret: bytes | None = None,
) -> None:
    """Append parts to a turn; the id of its run is in the first."""
    place = db.execute(_NEXT, (owner, turn)).fetchone()[0]
    begun = [*([_RUN + run] if run and place == 0 else []), *started]
    parts = [*_parts(messages)] or ([b""] if begun else [])
    for number, part in enumerate(parts):
        stored = encrypt(secret, part) if secret is not None and part else part
        db.execute(
            _APPEND, (owner, turn, place + number, len(part), stored, msgspec.json.encode(begun if number == 0 else []))
        )


def _parts(messages: Sequence[Message]) -> Iterator[bytes]:
    """Return the messages as JSON arrays of moderate size."""
    pending: list[bytes] = []
    size = 0
    for message in messages:
        pending.append(encode_repaired(message))
        size += len(pending[-1])
        if size >= _PART_BYTES:
            yield b"[%b]" % b",".join(pending)
            pending, size = [], 0
    if pending:
        yield b"[%b]" % b",".join(pending)


def _turns(db: SqlConnection, owner: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the turns that these keys lead to so far."""
    found: dict[str, str] = {}
    for some in batches(keys):
        select = f"SELECT key, turn FROM turn_keys WHERE owner = ? AND key IN ({placeholders(some)})"  # noqa: S608 - ?
        found |= dict(db.execute(select, (owner, *some)).fetchall())
    return found


def _drop(db: SqlConnection, turns: Iterable[tuple[str, str]]) -> None:
    """Delete the turns that no key leads to any more."""
    db.executemany(_DROP, [(owner, turn, owner, turn) for owner, turn in turns])


def delete_expired_turns(db: SqlConnection, now: float, most: int) -> int:
    """Delete at most so many expired keys, and the turns that are left without one; returns how many keys."""
    select = "SELECT owner, key, turn FROM turn_keys WHERE expires < ? ORDER BY expires LIMIT ?"
    old = db.execute(select, (now, most)).fetchall()
    db.executemany("DELETE FROM turn_keys WHERE owner = ? AND key = ?", [(owner, key) for owner, key, _ in old])
    _drop(db, {(owner, turn) for owner, _, turn in old})
    return len(old)
