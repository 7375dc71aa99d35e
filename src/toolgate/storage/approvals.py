"""Store approvals and grants: every change of state is one statement that names the state it starts from.

Knows rows and states, not what they mean: records are the Structs of the caller, whose fields are named like the columns.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from toolgate.storage.database import Database, SqlConnection

_Approval = TypeVar("_Approval", bound=Struct)
_Grant = TypeVar("_Grant", bound=Struct)
_Row: TypeAlias = dict[str, Any]
# By when they were made; or `fair`, where callers take turns and the oldest of each goes first.
Order: TypeAlias = Literal["asc", "desc", "fair"]

_EXPIRE = "UPDATE approvals SET state = 'expired' WHERE state IN ('pending', 'approved') AND expires <= :now"
# Found by an index alone, as are the pages of lists: a caller may have very many approvals with very long arguments, and
# reading those would hold up the database for all.
_VOID_STALE = """
UPDATE approvals SET state = 'out_of_scope' WHERE id IN (
    SELECT id FROM approvals
    WHERE caller = :caller AND tool = :tool AND state IN ('pending', 'approved')
        AND (source != :source OR spec != :spec OR policy != :policy)
)
"""
_FORGET_STALE = "DELETE FROM grants WHERE caller = :caller AND tool = :tool AND (source != :source OR spec != :spec)"
_CONSUME = """
UPDATE approvals SET state = 'consumed' WHERE state = 'approved' AND id =
    (SELECT id FROM approvals WHERE digest = :digest AND state = 'approved' ORDER BY created LIMIT 1)
RETURNING *
"""
# A question that has expired is not asked again in the run that asked it.
_STANDING = """
SELECT * FROM approvals WHERE digest = :digest AND (state = 'pending' OR (state = 'expired' AND run = :run))
ORDER BY CASE state WHEN 'pending' THEN 0 ELSE 1 END, created DESC LIMIT 1
"""
# A denial counts for the first run that meets it, which `told` stores; a later run asks the person again.
_MEET_DENIAL = """
UPDATE approvals SET told = :run WHERE id =
    (SELECT id FROM approvals
     WHERE digest = :digest AND state = 'denied' AND expires > :now AND (told IS NULL OR told = :run)
     ORDER BY created DESC LIMIT 1)
RETURNING *
"""
# Approved ones do not count: the limit is to stop a model that asks for one refused call after the other.
_COUNT = "SELECT count(*) FROM approvals WHERE run = :run AND state IN ('pending', 'denied', 'expired')"
_INSERT = """
INSERT INTO approvals (
    id, caller, session, run, call, tool, source, origin, arguments, digest, spec, policy, why, created, expires,
    title, question, message, tainted, state
) VALUES (
    :id, :caller, :session, :run, :call, :tool, :source, :origin, :arguments, :digest, :spec, :policy, :why, :created,
    :expires, :title, :question, :message, :tainted, 'pending'
) RETURNING *
"""
_ANSWER = """
UPDATE approvals SET state = :state, answered_by = :answered_by, answered = :answered, level = :level,
    reason = :reason, edited = :edited, edited_digest = :edited_digest, expires = :expires
WHERE id = :id AND state = 'pending' AND expires > :now
"""
_DENY_ALL = """
UPDATE approvals SET state = 'denied', answered_by = :by, answered = :now, level = 'once', reason = :reason
WHERE state = 'pending' AND expires > :now
    AND (CAST(:caller AS TEXT) IS NULL OR caller = :caller) AND (CAST(:run AS TEXT) IS NULL OR run = :run)
RETURNING id
"""
_VOID = "UPDATE approvals SET state = 'out_of_scope' WHERE id = :id AND state IN ('pending', 'approved')"
# Many calls wait and look at their approvals again and again: expiry is read here, and written when a call is claimed.
# The result has two columns `state`; `_rows` keeps the last one.
_FIND = """
SELECT approvals.*, CASE WHEN state IN ('pending', 'approved') AND expires <= :now THEN 'expired' ELSE state END AS state
FROM approvals WHERE id = :id AND (CAST(:caller AS TEXT) IS NULL OR caller = :caller)
"""
_LIST = """
SELECT * FROM approvals
WHERE (CAST(:caller AS TEXT) IS NULL OR caller = :caller) AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY created DESC, id LIMIT :limit
"""
_USED = """
SELECT * FROM approvals
WHERE digest = :digest AND state = 'consumed' AND caller = :caller AND run = :run AND call = :call
ORDER BY created DESC LIMIT 1
"""
_PAGE = """
SELECT * FROM {table} WHERE id IN (
    SELECT id FROM {table} WHERE {filters} AND {behind} ORDER BY created {direction}, id {direction} LIMIT :limit
)
ORDER BY created {direction}, id {direction}
"""
_BEHIND = "(created, id) {sign} (SELECT created, id FROM {table} WHERE id = :cursor)"
# One of each caller, the oldest first, then the next of each: many of one caller do not hide those of another.
_FAIR_PAGE = """
WITH listed AS (
    SELECT id AS listed, created AS since, row_number() OVER (PARTITION BY caller ORDER BY created, id) AS turn
    FROM {table} WHERE {filters}
), paged AS (
    SELECT listed, since, turn FROM listed WHERE {behind}
    ORDER BY turn {direction}, since {direction}, listed {direction} LIMIT :limit
)
SELECT {table}.* FROM paged JOIN {table} ON id = listed
ORDER BY turn {direction}, since {direction}, listed {direction}
"""
_FAIR_BEHIND = "(turn, since, listed) {sign} (SELECT turn, since, listed FROM listed WHERE listed = :cursor)"
# Where a request demands to be asked, the same grant may be given any number of times.
_FORGET_SAME = """
DELETE FROM grants WHERE caller = :caller AND tool = :tool AND source = :source AND spec = :spec
    AND level = :level AND place = :place
"""
_GRANT = """
INSERT INTO grants (id, caller, tool, source, spec, level, place, granted_by, created)
VALUES (:id, :caller, :tool, :source, :spec, :level, :place, :granted_by, :created)
"""
# The place is empty where a request has no session or no workspace: such requests must not share a grant.
_IS_GRANTED = """
SELECT 1 FROM grants WHERE caller = :caller AND tool = :tool AND source = :source AND spec = :spec AND (
    level = 'always'
    OR (level = 'workspace' AND place = :workspace AND place != '')
    OR (level = 'session' AND place = :session AND place != '' AND created > :since)
) LIMIT 1
"""
_GRANTS = """
SELECT * FROM grants WHERE CAST(:caller AS TEXT) IS NULL OR caller = :caller ORDER BY created DESC, id LIMIT 1000
"""
_DISUSE = """
UPDATE approvals SET state = 'out_of_scope'
WHERE state = 'approved' AND (CAST(:caller AS TEXT) IS NULL OR caller = :caller)
"""
_RESET = "DELETE FROM grants WHERE CAST(:caller AS TEXT) IS NULL OR caller = :caller"


class ApprovalStore(Generic[_Approval, _Grant]):
    """Stores approvals and grants (`toolgate.approvals.store_protocol.ApprovalStoreProtocol`)."""

    def __init__(self, database: Database, approval: type[_Approval], grant: type[_Grant]) -> None:
        """Return records as these types."""
        self._database = database
        self._approval = approval
        self._grant = grant

    async def claim(self, new: _Approval, limit: int, now: float) -> _Approval | None:
        values = {**asdict(new), "now": now}

        def claim(db: SqlConnection) -> _Row | None:
            # What no longer holds goes first, so that no statement below finds it.
            for text in (_EXPIRE, _VOID_STALE, _FORGET_STALE):
                db.execute(text, values)
            for text in (_CONSUME, _STANDING, _MEET_DENIAL):
                if found := _rows(db, text, values):
                    return found[0]
            if db.execute(_COUNT, values).fetchone()[0] >= limit:
                return None
            return _rows(db, _INSERT, values)[0]

        found = await self._database.change(claim)
        return None if found is None else self._read(found)

    async def use(self, digest: str, now: float) -> _Approval | None:
        values = {"digest": digest, "now": now}

        def use(db: SqlConnection) -> list[_Row]:
            db.execute(_EXPIRE, values)
            return _rows(db, _CONSUME, values)

        used = await self._database.change(use)
        return self._read(used[0]) if used else None

    async def answer(self, answered: _Approval, grant: _Grant | None, now: float) -> bool:
        values = {**asdict(answered), "now": now}

        def answer(db: SqlConnection) -> bool:
            won = db.execute(_ANSWER, values).rowcount == 1
            # Two people may answer at once: the grant of the one who came second must not be stored.
            if won and grant is not None:
                db.execute(_FORGET_SAME, asdict(grant))
                db.execute(_GRANT, asdict(grant))
            return won

        return await self._database.change(answer)

    async def find(self, id: str, now: float, *, caller: str | None = None) -> _Approval | None:
        rows = await self._database.read(lambda db: _rows(db, _FIND, {"id": id, "caller": caller, "now": now}))
        return self._read(rows[0]) if rows else None

    async def approvals(
        self, now: float, *, caller: str | None = None, state: str | None = None, limit: int = 1000
    ) -> list[_Approval]:
        values = {"caller": caller, "state": state, "limit": limit, "now": now}

        def expire_and_read(db: SqlConnection) -> list[_Row]:
            db.execute(_EXPIRE, values)
            return _rows(db, _LIST, values)

        return [self._read(row) for row in await self._database.change(expire_and_read)]

    async def page(
        self,
        now: float,
        *,
        filters: Mapping[str, str],
        order: Order,
        after: str | None,
        before: str | None,
        limit: int,
    ) -> list[_Approval] | None:
        # The filters compare the stored state, so what has expired is stored first.
        await self._database.change(lambda db: db.execute(_EXPIRE, {"now": now}))
        found = await self._database.read(lambda db: _page(db, "approvals", filters, order, after, before, limit))
        return None if found is None else [self._read(row) for row in found]

    async def used(self, caller: str, run: str, call: str, digest: str) -> _Approval | None:
        values = {"caller": caller, "run": run, "call": call, "digest": digest}
        rows = await self._database.read(lambda db: _rows(db, _USED, values))
        return self._read(rows[0]) if rows else None

    async def deny_all(
        self, reason: str | None, by: str, now: float, *, caller: str | None, run: str | None
    ) -> list[str]:
        values = {"reason": reason, "by": by, "now": now, "caller": caller, "run": run}
        return [row["id"] for row in await self._database.change(lambda db: _rows(db, _DENY_ALL, values))]

    async def void(self, id: str) -> bool:
        return await self._database.change(lambda db: db.execute(_VOID, {"id": id}).rowcount == 1)

    async def is_granted(
        self, caller: str, tool: str, source: str, spec: str, session: str, workspace: str, since: float
    ) -> bool:
        values = {"caller": caller, "tool": tool, "source": source, "spec": spec, "session": session}
        values |= {"workspace": workspace}
        return await self._database.read(
            lambda db: db.execute(_IS_GRANTED, {**values, "since": since}).fetchone() is not None
        )

    async def grants(self, caller: str | None = None) -> list[_Grant]:
        rows = await self._database.read(lambda db: _rows(db, _GRANTS, {"caller": caller}))
        return [msgspec.convert(row, self._grant) for row in rows]

    async def grants_page(
        self, *, filters: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> list[_Grant] | None:
        rows = await self._database.read(lambda db: _page(db, "grants", filters, order, after, before, limit))
        return None if rows is None else [msgspec.convert(row, self._grant) for row in rows]

    async def reset(self, caller: str | None = None) -> int:
        def reset(db: SqlConnection) -> int:
            db.execute(_DISUSE, {"caller": caller})
            return db.execute(_RESET, {"caller": caller}).rowcount

        return await self._database.change(reset)

    def _read(self, row: _Row) -> _Approval:
        return msgspec.convert({**row, "tainted": bool(row["tainted"])}, self._approval)


def _page(
    db: SqlConnection,
    table: str,
    filters: Mapping[str, str],
    order: Order,
    after: str | None,
    before: str | None,
    limit: int,
) -> list[_Row] | None:
    """Return the rows of a page, in the order of the list; None if the cursor is not among the filtered ones."""
    fits = " AND ".join([f"{name} = :{name}" for name in filters]) or "1 = 1"
    cursor, fair = after or before, order == "fair"
    values: _Row = {**filters, "limit": limit}
    if cursor is not None:
        values["cursor"] = cursor
        there = f"SELECT 1 FROM {table} WHERE id = :cursor AND {fits}"  # noqa: S608 - names of columns
        if db.execute(there, values).fetchone() is None:
            return None
    # The page before a cursor is read backwards from it, so that LIMIT keeps the rows next to it, and reversed below.
    rising = (order != "desc") == (before is None)
    fields = {"table": table, "filters": fits, "direction": "ASC" if rising else "DESC"}
    behind = (_FAIR_BEHIND if fair else _BEHIND).format(sign=">" if rising else "<", **fields)
    text = (_FAIR_PAGE if fair else _PAGE).format(behind=behind if cursor is not None else "1 = 1", **fields)
    rows = _rows(db, text, values)
    return rows if before is None else rows[::-1]


def _rows(db: SqlConnection, text: str, values: _Row) -> list[_Row]:
    """Return all rows by the names of their columns."""
    cursor = db.execute(text, values)
    names = [column[0] for column in cursor.description or ()]
    # All are fetched: in SQLite a statement with RETURNING is over only when its last row is read.
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
