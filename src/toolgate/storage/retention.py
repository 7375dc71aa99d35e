"""Delete old rows, a few at a time, and everything that one owner has.

Any number of nodes may do this at once. What belongs to a row is deleted in the same transaction as the row.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import TypeAlias

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.hidden_turns import delete_expired_turns
from toolgate.storage.idempotency import delete_expired_answers
from toolgate.storage.observed_leases import ClockJumps
from toolgate.storage.peer_conversations import delete_expired_peer_conversations
from toolgate.storage.recorded_chats import forget_chat
from toolgate.storage.request_batches import PERIOD
from toolgate.storage.responses import forget_run_content
from toolgate.storage.sql_engine import Values, placeholders
from toolgate.storage.streams import delete_expired_frames

# Rows that are deleted in one transaction: requests that write wait behind it.
AT_ONCE = 200

# Records of requests that are kept at most, whatever their age: a busy server gets many more than that in a week.
MOST_REQUESTS = 1_000_000

_DAY = 86_400.0
# Seconds for which nothing counts as older because a clock was set forward, so that a wrong one can be set right.
_CLOCK_SECONDS = 7 * _DAY
# One that another continues stays until that one goes, and one that is still being made until it is ready.
_DISPENSABLE = """
created < ? AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.previous = responses.id)
    AND NOT EXISTS (
        SELECT 1 FROM runs WHERE runs.id = responses.id AND runs.state IN ('queued', 'running', 'waiting')
    )
"""
_RESPONSES = f"SELECT id FROM responses WHERE {_DISPENSABLE} ORDER BY created, id LIMIT ?"  # noqa: S608 - constants
# Questions that a person may still answer, and approvals that a call may still use, stay. That one has expired is stored
# only when another is asked for or looked at, which may never happen.
_CLOSED = """
SELECT id FROM approvals WHERE created < ? AND (state NOT IN ('pending', 'approved') OR expires <= ?)
ORDER BY created, id LIMIT ?
"""
# A grant for a session counts for a day only.
_ENDED_GRANTS = "SELECT id FROM grants WHERE level = 'session' AND created < ? ORDER BY created, id LIMIT ?"
_DAYS = "SELECT DISTINCT day FROM usage_sums WHERE day < ? ORDER BY day LIMIT ?"

# The records of requests, oldest first: their tables, and how many rows are deleted at once. A batch, which may have 500
# requests, is as old as the youngest that it may have.
_OLDEST_REQUESTS = (
    ("request_records", "SELECT created, id, 1 FROM request_records ORDER BY created, id LIMIT ?", 5 * AT_ONCE),
    (
        "request_batches",
        f"SELECT created + {PERIOD}, id, requests FROM request_batches ORDER BY created, id LIMIT ?",  # noqa: S608 - constants
        AT_ONCE // 4,
    ),
)

# Deletes some of the rows from before this time; how many there were, 0 when none are left.
Sweep: TypeAlias = Callable[[SqlConnection, float], int]


def _responses(db: SqlConnection, before: float) -> int:
    found = _ids(db, _RESPONSES, int(before))
    deleted = 0
    # Then what only these have continued, and so on: of a conversation with a thousand turns one goes after the other.
    while found:
        select = f"SELECT previous FROM responses WHERE previous IS NOT NULL AND id IN ({placeholders(found)})"  # noqa: S608 - ?
        earlier = sorted({row[0] for row in db.execute(select, found).fetchall()})
        _delete_responses(db, found)
        deleted += len(found)
        found = []
        if earlier and deleted < AT_ONCE:
            select = f"SELECT id FROM responses WHERE id IN ({placeholders(earlier)}) AND {_DISPENSABLE}"  # noqa: S608 - ?
            found = [row[0] for row in db.execute(select, (*earlier, int(before))).fetchall()]
    return deleted


def _conversations(db: SqlConnection, before: float) -> int:
    ids = _ids(db, "SELECT id FROM conversations WHERE created < ? ORDER BY created, id LIMIT ?", int(before))
    _delete_conversations(db, ids)
    return len(ids)


def _chats(db: SqlConnection, before: float) -> int:
    ids = _ids(db, "SELECT id FROM chats WHERE updated < ? ORDER BY updated, id LIMIT ?", before)
    _delete_chats(db, ids)
    return len(ids)


def _invocations(db: SqlConnection, before: float) -> int:
    ids = _ids(db, "SELECT id FROM tool_invocations WHERE started < ? ORDER BY started, id LIMIT ?", before)
    db.executemany("DELETE FROM tool_invocations WHERE id = ?", [(id,) for id in ids])
    return len(ids)


def _approvals(db: SqlConnection, before: float) -> int:
    ids = [row[0] for row in db.execute(_CLOSED, (before, before, AT_ONCE)).fetchall()]
    db.executemany("DELETE FROM approvals WHERE id = ?", [(id,) for id in ids])
    grants = _ids(db, _ENDED_GRANTS, before)
    db.executemany("DELETE FROM grants WHERE id = ?", [(id,) for id in grants])
    return len(ids) + len(grants)


def _usage(db: SqlConnection, before: float) -> int:
    days = _ids(db, _DAYS, f"{datetime.fromtimestamp(before, UTC):%Y-%m-%d}")
    db.executemany("DELETE FROM usage_sums WHERE day = ?", [(day,) for day in days])
    return len(days)


def _requests(db: SqlConnection, before: float) -> int:
    surplus = _count(db, "SELECT count(*) FROM request_records") - MOST_REQUESTS
    surplus += _count(db, "SELECT sum(requests) FROM request_batches")
    # What is behind the last that was read may be older than some of the other table.
    found: list[tuple[float, str, int, str]] = []
    read_until = inf
    for table, select, most in _OLDEST_REQUESTS:
        some = db.execute(select, (most,)).fetchall()
        found += [(*row, table) for row in some]
        if len(some) == most:
            read_until = min(read_until, some[-1][0])
    old: dict[str, list[tuple[str]]] = {table: [] for table, _, _ in _OLDEST_REQUESTS}
    deleted = 0
    for created, id, requests, table in sorted(found):
        if created > read_until or (created > before and surplus <= deleted):
            break
        old[table].append((id,))
        deleted += requests
    for table, ids in old.items():
        db.executemany(f"DELETE FROM {table} WHERE id = ?", ids)  # noqa: S608 - constants
    return deleted


def _runs(db: SqlConnection, before: float) -> int:
    ids = _ids(
        db,
        "SELECT id FROM run_records WHERE created < ? AND ended IS NOT NULL ORDER BY created, id LIMIT ?",
        before,
    )
    rows = [(id,) for id in ids]
    db.executemany("DELETE FROM run_entries WHERE run = ?", rows)
    db.executemany("DELETE FROM run_records WHERE id = ?", rows)
    return len(ids)


def _hours(db: SqlConnection, before: float) -> int:
    first = f"{datetime.fromtimestamp(before, UTC):%Y-%m-%dT%H}"
    found = 0
    for table in ("usage_hours", "latency_counts"):
        # An hour has a row for each key and model, so few hours at a time.
        hours = _ids(db, f"SELECT DISTINCT hour FROM {table} WHERE hour < ? ORDER BY hour LIMIT ?", first, 24)  # noqa: S608 - constants
        found += sum([db.execute(f"DELETE FROM {table} WHERE hour = ?", (hour,)).rowcount for hour in hours])  # noqa: S608 - constants
    return found


# By the names that `records.days` has for them.
SWEEPS: Mapping[str, Sweep] = {
    "responses": _responses,
    "conversations": _conversations,
    "chats": _chats,
    "invocations": _invocations,
    "usage": _usage,
    "approvals": _approvals,
    "requests": _requests,
    "hours": _hours,
    "runs": _runs,
}
# What has a time of its own: deleted with new rows of its kind, of which there may be none, and here.
_EXPIRED: Sequence[Callable[[SqlConnection, float, int], int]] = (
    delete_expired_turns,
    delete_expired_answers,
    delete_expired_frames,
    delete_expired_peer_conversations,
)
# The tables from which all rows of an owner go, and the column that names it. `api_keys` is not among them: the name of a
# key is never given to another.
_OWNED = {
    "tool_invocations": "owner",
    "request_records": "owner",
    "request_batches": "owner",
    "usage_sums": "key",
    "usage_hours": "key",
    "latency_counts": "key",
    "spending": "key",
    "approvals": "caller",
    "grants": "caller",
    "turn_keys": "owner",
    "turn_parts": "owner",
    "runs": "owner",
    "run_records": "owner",
    "run_entries": "owner",
    "run_requests": "owner",
    "idempotency": "owner",
    "peer_conversations": "owner",
    "items": "owner",
}


class RetentionStore:
    """Deletes old rows, and all rows of an owner."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._jumps = ClockJumps(clock, steady)

    async def sweep(self, kind: str, days: int) -> int:
        """Delete some rows of this kind that are older than so many days, and return how many."""
        before = max(0.0, self._now() - days * _DAY)  # a time before the year 1 has no date
        return await self._database.change(lambda db: SWEEPS[kind](db, before))

    async def expire(self) -> int:
        """Delete some rows of those that no request can find any more, whatever is configured, and return how many."""
        now = self._now()
        return await self._database.change(lambda db: sum([delete(db, now, AT_ONCE) for delete in _EXPIRED]))

    async def forget(self, owner: str) -> dict[str, int]:
        """Delete everything of one owner, whatever its age, and return how many rows of each kind there were."""

        def forget(db: SqlConnection) -> dict[str, int]:
            gone: dict[str, int] = {}
            # Tables without an owner column hold what belongs to these, so it is found by their ids.
            for kind, delete in (
                ("responses", _delete_responses),
                ("conversations", _delete_conversations),
                ("chats", _delete_chats),
            ):
                ids = [row[0] for row in db.execute(f"SELECT id FROM {kind} WHERE owner = ?", (owner,)).fetchall()]  # noqa: S608 - constants
                delete(db, ids)
                gone[kind] = len(ids)
            batched = _count(db, "SELECT sum(requests) FROM request_batches WHERE owner = ?", (owner,))
            for table, column in _OWNED.items():
                gone[table] = db.execute(f"DELETE FROM {table} WHERE {column} = ?", (owner,)).rowcount  # noqa: S608 - constants
            # Counted as what they are, and not as rows.
            del gone["request_batches"]
            gone["request_records"] += batched
            return {kind: count for kind, count in gone.items() if count}

        return await self._database.change(forget)

    def _now(self) -> float:
        return self._clock() - self._jumps.forward(_CLOCK_SECONDS)


def _delete_responses(db: SqlConnection, ids: list[str]) -> None:
    rows = [(id,) for id in ids]
    db.executemany("DELETE FROM items WHERE response = ?", rows)
    db.executemany("DELETE FROM response_events WHERE response = ?", rows)
    db.executemany("DELETE FROM response_streams WHERE response = ?", rows)
    forget_run_content(db, ids)
    db.executemany("DELETE FROM responses WHERE id = ?", rows)


def _delete_conversations(db: SqlConnection, ids: list[str]) -> None:
    rows = [(id,) for id in ids]
    db.executemany("DELETE FROM conversation_items WHERE conversation = ?", rows)
    db.executemany("DELETE FROM conversations WHERE id = ?", rows)


def _delete_chats(db: SqlConnection, ids: list[str]) -> None:
    for id in ids:
        forget_chat(db, id)
    db.executemany("DELETE FROM chats WHERE id = ?", [(id,) for id in ids])


def _count(db: SqlConnection, select: str, values: Values = ()) -> int:
    return int(db.execute(select, values).fetchone()[0] or 0)


def _ids(db: SqlConnection, select: str, before: float | str, most: int = AT_ONCE) -> list[str]:
    return [row[0] for row in db.execute(select, (before, most)).fetchall()]
