"""Objects of another tenant and absent ones cost the same work in the database (fault: Z2).

No time is measured here (`python -m bench.timing` does that). Every statement of a request is noted with the rows it found:
a row that is read and then found to be another tenant's is work that an absent one does not make.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.auth.tenants import CASES, Tenants, Way, absent, tenants
from tests.auth.test_authorisation import place
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Secret
from toolgate.http.application import HttpRoute
from toolgate.storage.database import SqlConnection, SqlCursor

REQUEST = ContextVar("REQUEST", default=0)
"""The number of the request for which something is done."""


class Noting:
    """A connection that notes each statement and how many rows came of it."""

    def __init__(self, db: SqlConnection, notes: list[tuple[str, int]]) -> None:
        self._db = db
        self._notes = notes

    def execute(self, sql: str, values: Any = (), /) -> "Found":
        cursor = self._db.execute(sql, values)
        rows = cursor.fetchall() if cursor.description is not None else []
        self._notes.append((sql, max(len(rows), cursor.rowcount)))
        return Found(cursor, rows)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> SqlCursor:
        given = list(rows)
        self._notes.append((sql, len(given)))
        return self._db.executemany(sql, given)


class Found:
    """What a noted statement found."""

    def __init__(self, cursor: SqlCursor, rows: list[Any]) -> None:
        self.rowcount = cursor.rowcount
        self.description = cursor.description
        self._rows = rows

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


class Statements:
    """The statements that one request has run, whatever else the server does meanwhile."""

    def __init__(self, gate: Toolgate, patch: pytest.MonkeyPatch) -> None:
        self._notes: list[tuple[str, int]] = []
        self._number = 0
        database, keys = gate.services.database, gate.services.keys.authenticator
        for name in ("read", "change"):
            patch.setattr(database, name, self._noted(getattr(database, name)))
        patch.setattr(keys, "authenticate", self._marked(keys.authenticate))

    def _marked(self, authenticate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def marked(headers: Any, named: Any) -> Any:
            REQUEST.set(self._number)  # every request passes here first, and its tasks know of it
            return authenticate(headers, named)

        return marked

    def _noted(self, run: Callable[[Callable[[Any], Any]], Any]) -> Callable[[Callable[[Any], Any]], Any]:
        def noting(work: Callable[[Any], Any]) -> Any:
            return run(lambda db: work(Noting(db, self._notes))) if REQUEST.get() == self._number else run(work)

        return noting

    async def of(self, request: Awaitable[object]) -> list[tuple[str, int]]:
        """Those of this request."""
        self._notes = []
        self._number += 1
        await request
        return self._notes


@pytest.fixture
async def served(tmp_path: Path, storage_url: str) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path, storage=Secret(storage_url)) as served:
        await served.own()
        yield served


async def compare(
    served: Tenants, statements: Statements, endpoint: HttpRoute, way: Way, who: str
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the statements for an object of ann, and for an absent one."""
    id = served.owned[way.thing]
    await served.named(endpoint, way, absent(id), who)  # it writes what waits to be written for earlier ones
    theirs = await statements.of(served.named(endpoint, way, id, who))
    return theirs, await statements.of(served.named(endpoint, way, absent(id), who))


def named(served: Tenants) -> Iterator[tuple[HttpRoute, Way]]:
    """Every way in which a request can name what is another's."""
    return ((one, way) for one in served.endpoints for way in CASES[place(one)].ways)


async def test_another_tenants_id_costs_the_statements_of_an_absent_one_and_finds_as_little(
    served: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: Z2: every kind of thing, every route and method, in path, query, body and headers."""
    statements, asked = Statements(served.gate, monkeypatch), 0
    for endpoint, way in named(served):
        theirs, nobodys = await compare(served, statements, endpoint, way, "bob")
        assert theirs == nobodys, (place(endpoint), way)
        asked += bool(theirs)
    assert asked > 25, "most things are in the database"


async def test_the_owner_is_seen_to_find_something(served: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove nothing."""
    statements, blind = Statements(served.gate, monkeypatch), []
    for endpoint, way in named(served):
        if endpoint.method != "GET" or way.thing == "session" or not way.fails:
            continue
        own, nobodys = await compare(served, statements, endpoint, way, "ann")
        if own == nobodys:
            blind.append((place(endpoint), way))
    assert blind == []
