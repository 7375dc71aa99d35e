"""Store the calls of server tools, one row for each: the caller, the tool, how long it took and how it ended.

Of arguments a digest is stored, so that equal calls can be found; the arguments themselves only if the caller passes them.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.responses import Write


class StoredInvocation(Struct, frozen=True):
    """One call; `run` is the request or run that it was made for, `started` a time in seconds since 1970."""

    id: str
    owner: str
    run: str
    call: str
    tool: str
    source: str
    started: float
    latency_ms: float
    outcome: str
    digest: str
    arguments: str | None = None


class InvocationFilter(Struct, frozen=True):
    """Which calls are read; None means any."""

    owner: str | None = None
    tool: str | None = None
    outcome: str | None = None
    run: str | None = None


_COLUMNS = ", ".join(StoredInvocation.__struct_fields__)
_INSERT = f"INSERT INTO tool_invocations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_PLACE = "SELECT started FROM tool_invocations WHERE id = :id AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)"


class InvocationStore:
    """Stores calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def adding(self, invocation: StoredInvocation) -> Write:
        """Return the write that stores this call."""
        row = astuple(invocation)
        return lambda db: db.execute(_INSERT, row)

    async def page(self, wanted: InvocationFilter, after: str | None, limit: int) -> list[StoredInvocation] | None:
        """Return at most so many calls, newest first, those after the one named `after`; None if there is no such one."""
        filters = {name: value for name, value in asdict(wanted).items() if value is not None}

        def read(db: SqlConnection) -> list[StoredInvocation] | None:
            conditions, values = [f"{name} = ?" for name in filters], list(filters.values())
            # The place behind a row, not a number of rows: calls that are added meanwhile shift no page.
            if after is not None:
                found = db.execute(_PLACE, {"id": after, "owner": wanted.owner}).fetchone()
                if found is None:
                    return None
                conditions.append("(started < ? OR (started = ? AND id < ?))")
                values += [found[0], found[0], after]
            where = " AND ".join(conditions) or "1 = 1"
            text = f"SELECT {_COLUMNS} FROM tool_invocations WHERE {where} ORDER BY started DESC, id DESC LIMIT ?"  # noqa: S608 - names of columns
            rows = db.execute(text, (*values, limit))
            fields = StoredInvocation.__struct_fields__
            return [msgspec.convert(dict(zip(fields, row, strict=True)), StoredInvocation) for row in rows]

        return await self._database.read(read)
