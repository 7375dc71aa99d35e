"""What became of calls, on the disk: found by what is asked, page by page (spec: D1)."""

from typing import Any

from toolgate.storage.database import Database
from toolgate.storage.invocations import InvocationFilter, InvocationStore, StoredInvocation


def call(number: int, **more: Any) -> StoredInvocation:
    values: dict[str, Any] = {"owner": "ann", "tool": "add", "outcome": "ok", "started": float(number // 2), **more}
    return StoredInvocation(
        id=f"inv_{number}", run="r1", call=f"call_{number}", source="python", latency_ms=1.5, digest="d", **values
    )


async def test_they_are_reported_newest_first_page_by_page(storage_url: str) -> None:
    store = InvocationStore(database := Database(storage_url))
    for number in (3, 1, 4, 0, 2):
        await database.change(store.adding(call(number)))
    emitted: list[str] = []
    while page := await store.page(InvocationFilter("ann"), emitted[-1] if emitted else None, 2):
        emitted += [one.id for one in page]
    assert emitted == ["inv_4", "inv_3", "inv_2", "inv_1", "inv_0"]
    assert await store.page(InvocationFilter(), "inv_nine", 2) is None
    await database.aclose()


async def test_they_are_found_by_the_query_and_by_their_owner_alone(storage_url: str) -> None:
    store = InvocationStore(database := Database(storage_url))
    rows = [call(0), call(1, tool="sub", outcome="error"), call(2, owner="bob", arguments='{"a": 1}')]
    for row in rows:
        await database.change(store.adding(row))

    async def found(wanted: InvocationFilter, after: str | None = None) -> list[str] | None:
        page = await store.page(wanted, after, 9)
        return None if page is None else [one.id for one in page]

    assert await found(InvocationFilter()) == ["inv_2", "inv_1", "inv_0"]
    assert await found(InvocationFilter("ann")) == ["inv_1", "inv_0"]
    assert await found(InvocationFilter("ann", tool="sub")) == ["inv_1"]
    assert await found(InvocationFilter(outcome="error")) == ["inv_1"]
    assert await found(InvocationFilter(run="r2")) == []
    assert await found(InvocationFilter("ann"), "inv_2") is None
    assert await store.page(InvocationFilter("bob"), None, 9) == rows[2:]
    await database.aclose()
