"""Every record can be taken elsewhere, as JSON whose names stay the same (spec: D2)."""

import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.storage.test_invocations import call
from tests.storage.test_recorded_chats import output
from tests.storage.test_request_records import busy_requests, put, request
from tests.storage.test_retention import DAY, NOW, put_approval, response
from tests.storage.test_run_records import run
from toolgate.storage.conversations import ConversationStore, StoredConversation
from toolgate.storage.database import Database
from toolgate.storage.exports import KINDS, exported
from toolgate.storage.invocations import InvocationStore
from toolgate.storage.recorded_chats import ChatStore
from toolgate.storage.responses import ResponseStore
from toolgate.storage.run_records import RunRecordStore
from toolgate.storage.spending import SpendingStore
from toolgate.storage.usage import UsagePeriodTotal, UsageStore

FIELDS = {
    "conversations": {"kind", "id", "owner", "created_at", "metadata", "items"},
    "responses": {"kind", "id", "owner", "created_at", "previous_response_id", "input", "response"},
    "chats": {"kind", "id", "owner", "model", "dialect", "created_at", "updated_at", "messages", "completions"},
    "invocations": {"kind", "id", "owner", "run", "call", "tool", "source", "started", "latency_ms", "outcome"}
    | {"digest", "arguments"},
    "requests": {"kind", "id", "owner", "created_at", "method", "path", "dialect", "upstream", "upstream_dialect"}
    | {"model", "stream", "status", "finish_reason", "code", "error", "input_tokens", "output_tokens", "cached_tokens"}
    | {"reasoning_tokens", "estimated", "cost", "first_token_ms", "total_ms", "tools", "warnings", "run"},
    "runs": {"kind", "id", "owner", "run_kind", "state", "model", "created_at", "started_at", "ended_at", "steps"}
    | {"calls", "tools", "input_tokens", "output_tokens", "cost", "error", "response", "forked_run", "forked_step"}
    | {"timeline"},
    "usage": {"kind", "day", "key", "model", "requests", "input_tokens", "output_tokens", "cached_tokens"}
    | {"reasoning_tokens", "estimated", "cost", "errors"},
    "spending": {"kind", "key", "period", "amount"},
    "approvals": {"kind", "id", "caller", "session", "run", "call", "tool", "source", "arguments", "why", "state"}
    | {"answered_by", "answered", "level", "reason", "edited", "expires", "created_at"},
}


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


async def fill(database: Database, owner: str, number: int, created: float) -> None:
    await ResponseStore(database).save(response(f"r{number:04}", (NOW - created) / DAY, owner=owner))
    conversation = StoredConversation(f"c{number:04}", owner, int(created), {"topic": "tea"})
    await ConversationStore(database).create(conversation, [{"id": "i", "type": "message"}])
    await ChatStore(database).keep(output(f"Hi {number}", "Hello", owner=owner, now=created, completion=f"cc{number}"))
    await database.change(InvocationStore(database).adding(call(number, owner=owner, started=created)))
    await database.change(RunRecordStore(database).opening(run(number, owner=owner, created=created)))
    await put(database, request(number, owner=owner, created=created))
    await database.change(
        UsageStore(database).adding([UsagePeriodTotal("2027-01-15", owner, f"m{number}", 1, cost=0.5)])
    )
    await SpendingStore(database).add({(owner, datetime.fromtimestamp(created, UTC).date().isoformat()): 0.5})
    await put_approval(database, f"a{number:04}", "denied", created, caller=owner)


async def lines(database: Database, kind: str, **asked: object) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in exported(database, kind, **asked)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_is_reported_whole_and_filtered_by_owner_and_time(database: Database, kind: str) -> None:
    for number, (owner, created) in enumerate((("ann", NOW), ("bob", NOW), ("ann", NOW - 90 * DAY))):
        await fill(database, owner, number, created)
    everything = await lines(database, kind)
    assert len(everything) == 3
    assert {frozenset(one) for one in everything} == {frozenset(FIELDS[kind])}
    assert len(await lines(database, kind, owner="ann")) == 2
    assert len(await lines(database, kind, owner="eve")) == 0
    assert len(await lines(database, kind, since=NOW - DAY)) == (3 if kind == "usage" else 2)
    assert len(await lines(database, kind, since=NOW + DAY)) == 0


async def test_what_was_spent_in_a_month_is_reported_until_its_end(database: Database) -> None:
    await SpendingStore(database).add({("ann", period): 0.5 for period in ("ever", "2027-01", "2026-12", "2027-01-14")})
    found = await lines(database, "spending", since=NOW)
    assert [one["period"] for one in found] == ["2027-01", "ever"]


async def test_more_than_a_batch_is_reported_once_each(database: Database) -> None:
    store, usage = InvocationStore(database), UsageStore(database)
    rows = [call(number) for number in range(250)]
    await database.change(lambda db: [store.adding(row)(db) for row in rows])
    await database.change(
        usage.adding([UsagePeriodTotal(f"2026-11-{n % 28 + 1:02}", "ann", f"m{n}", 1) for n in range(250)])
    )
    assert sorted([one["id"] for one in await lines(database, "invocations")]) == sorted([row.id for row in rows])
    assert {one["model"] for one in await lines(database, "usage")} == {f"m{number}" for number in range(250)}
    assert len(await lines(database, "usage")) == 250


async def test_requests_of_batches_are_reported_like_others(database: Database) -> None:
    rows = busy_requests()
    await put(database, *rows)
    found = await lines(database, "requests")
    assert sorted([one["id"] for one in found]) == sorted([one.id for one in rows])
    assert {frozenset(one) for one in found} == {frozenset(FIELDS["requests"])}
    assert {type(one["stream"]) for one in found} == {bool}
    mine = {one.id for one in rows if one.owner == "ann" and one.created >= NOW + 33}
    assert {one["id"] for one in await lines(database, "requests", owner="ann", since=NOW + 33)} == mine


async def test_large_records_are_read_a_few_at_a_time() -> None:
    """A hundred responses of ten megabytes were once read, and decoded, before the first was printed."""
    database = Database(None)
    store = ResponseStore(database)
    for number in range(30):
        large = {"type": "message", "role": "user", "content": "x" * 1_000_000}
        await store.save(replace(response(f"r{number:04}", 0), input=[large]))
    tracemalloc.start()
    try:
        read = [len(line) async for line in exported(database, "responses")]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await database.aclose()
    assert len(read) == 30
    assert min(read) > 1_000_000
    assert peak < 20_000_000


async def test_a_chat_is_reported_with_its_messages_and_what_is_stored_of_it(database: Database) -> None:
    await ChatStore(database).keep(output("Hi", "Hello", completion="cc1", metadata={"topic": "tea"}))
    [chat] = await lines(database, "chats")
    assert [(one["role"], one["content"]) for one in chat["messages"]] == [("user", "Hi"), ("assistant", "Hello")]
    assert set(chat["messages"][0]) == {"role", "content", "request_id", "created_at"}
    assert chat["completions"] == [{"id": "cc1", "message": 1, "metadata": {"topic": "tea"}}]


def test_the_names_of_all_fields_are_documented() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "records.md").read_text("utf-8")
    rows = {
        row.split("`")[1]: set(re.findall(r"`(\w+)`", row)[1:]) for row in page.splitlines() if row.startswith("| `")
    }
    for kind, fields in FIELDS.items():
        assert rows[kind.removesuffix("s") if kind != "usage" else kind] == fields - {"kind"}
