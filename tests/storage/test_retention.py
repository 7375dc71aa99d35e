"""Old records go, each kind after its time, with all that belongs to them; so does what an owner forgets (spec: D2)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.storage.test_invocations import call
from tests.storage.test_recorded_chats import output, words
from toolgate.conversation.message import Message, Text
from toolgate.storage.conversations import ConversationStore, StoredConversation
from toolgate.storage.database import Database
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.invocations import InvocationFilter, InvocationStore
from toolgate.storage.peer_conversations import PeerConversationStore
from toolgate.storage.recorded_chats import ChatStore
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.retention import AT_ONCE, SWEEPS, RetentionStore
from toolgate.storage.runs import RunStore
from toolgate.storage.streams import StreamStore
from toolgate.storage.usage import UsagePeriodTotal, UsageStore

DAY = 86_400.0
NOW = 1_800_000_000.0


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


def retention(database: Database) -> RetentionStore:
    return RetentionStore(database, clock=lambda: NOW)


async def count(database: Database, table: str) -> int:
    return int(await database.read(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]))


def response(id: str, days_ago: float, previous: str | None = None, owner: str = "ann") -> StoredResponse:
    body: dict[str, Any] = {"id": id, "output": [{"id": f"msg_{id}", "type": "message"}]}
    return StoredResponse(id, owner, previous, int(NOW - days_ago * DAY), [], body)


async def test_a_response_is_deleted_when_it_is_old_and_was_not_continued_since(database: Database) -> None:
    store = ResponseStore(database)
    for one in (
        response("old", 31),
        response("young", 29),
        response("root", 90),
        response("link", 60, "root"),
        response("leaf", 1, "link"),
        response("dead", 80),
        response("end", 70, "dead"),
    ):
        await store.save(one)
    assert await retention(database).sweep("responses", 30) == 3
    kept = [id for id in ("old", "young", "root", "link", "leaf", "dead", "end") if await store.load("ann", id)]
    assert kept == ["young", "root", "link", "leaf"]
    assert await count(database, "items") == 4
    assert len(await store.chain("ann", "leaf")) == 3


async def test_a_long_conversation_goes_in_steps_of_many_turns(database: Database) -> None:
    """One turn went with each sweep, an hour after the one before: a thousand turns took six weeks."""
    store, turns = ResponseStore(database), AT_ONCE + 50
    for number in range(turns):
        await store.save(response(f"r{number}", 90 - number / 1000, f"r{number - 1}" if number else None))
    assert [await retention(database).sweep("responses", 30) for _ in range(3)] == [AT_ONCE, 50, 0]


@pytest.mark.parametrize("state", ["queued", "running", "waiting"])
async def test_a_response_that_is_still_being_made_stays(database: Database, state: str) -> None:
    """A background response may wait for a person for longer than responses are kept."""
    store, runs = ResponseStore(database), RunStore(database, "node")
    await store.save(response("first", 50))
    await store.save(response("made", 40, "first"), runs.opening("made", "ann", b""))
    await database.change(lambda db: db.execute("UPDATE runs SET state = ?", (state,)))
    assert await retention(database).sweep("responses", 30) == 0
    await database.change(lambda db: db.execute("UPDATE runs SET state = 'completed'"))
    assert await retention(database).sweep("responses", 30) == 2


async def test_what_has_a_time_of_its_own_goes_without_new_requests_of_its_kind(database: Database) -> None:
    """Answers and turns that are stored for a day stayed until the next one was stored."""
    answers = IdempotencyStore(database, clock=lambda: NOW - 2 * DAY)
    await answers.claim("ann", "key", b"digest", "node", b"secret")
    turns = HiddenTurnStore(database, clock=lambda: NOW - 8 * DAY)
    await turns.keep("ann", [f"call_{number}" for number in range(AT_ONCE + 1)], [Message("user", (Text("Hi"),))])
    await PeerConversationStore(database, clock=lambda: NOW - 31 * DAY).keep("peer", "ann", "digest", "conversation")
    streams = StreamStore(database, clock=lambda: NOW - 2 * DAY)
    await database.change(streams.opening("resp", True))
    await database.change(streams.ending("resp", 0, [b"data: 1\n\n"], whole=True))
    tables = ("idempotency", "turn_keys", "turn_parts", "peer_conversations", "response_events")
    assert [await count(database, table) for table in tables] == [1, AT_ONCE + 1, 1, 1, 1]
    assert [await retention(database).expire() for _ in range(3)] == [AT_ONCE + 3, 1, 0]
    assert [await count(database, table) for table in tables] == [0] * 5


async def test_what_has_a_time_of_its_own_stays_until_then(database: Database) -> None:
    await IdempotencyStore(database, clock=lambda: NOW - DAY / 2).claim("ann", "key", b"digest", "node", b"secret")
    turns = HiddenTurnStore(database, clock=lambda: NOW - 6 * DAY)
    await turns.keep("ann", ["call"], [Message("user", (Text("Hi"),))])
    await PeerConversationStore(database, clock=lambda: NOW - 29 * DAY).keep("peer", "ann", "digest", "conversation")
    streams = StreamStore(database, clock=lambda: NOW - DAY / 2)
    await database.change(streams.opening("resp", True))
    await database.change(streams.ending("resp", 0, [b"data: 1\n\n"], whole=True))
    await database.change(streams.opening("later", True))
    assert await retention(database).expire() == 0


async def test_conversations_and_chats_go_with_all_that_is_in_them(database: Database) -> None:
    conversations, chats = ConversationStore(database), ChatStore(database)
    for id, days in (("conv_old", 10), ("conv_new", 1)):
        row = StoredConversation(id, "ann", int(NOW - days * DAY), {})
        await conversations.create(row, [{"id": f"i_{id}", "type": "message"}])
    await chats.keep(output("Old", "Yes", now=NOW - 40 * DAY, completion="c1"))
    await chats.keep(output("Left", "Yes", now=NOW - 39 * DAY))
    await chats.keep(output("Left", "Yes", "Back again", "Hi", now=NOW - DAY))
    assert await retention(database).sweep("conversations", 5) == 1
    assert await retention(database).sweep("chats", 30) == 1
    assert await count(database, "conversation_items") == 1
    assert await words(chats) == [["Left", "Yes", "Back again", "Hi"]]
    assert await count(database, "chat_messages") == 4
    assert await count(database, "completions") == 0


async def test_invocations_usage_and_closed_approvals_go(database: Database) -> None:
    invocations, usage = InvocationStore(database), UsageStore(database)
    for number, days in enumerate((100, 80)):
        await database.change(invocations.adding(call(number, started=NOW - days * DAY)))
    await database.change(
        usage.adding([UsagePeriodTotal("2025-01-01", "ann", "m", 1), UsagePeriodTotal("2027-01-01", "ann", "m", 1)])
    )
    for id, state, days in (("a", "denied", 100), ("b", "pending", 89), ("c", "consumed", 80)):
        await put_approval(database, id, state, NOW - days * DAY)
    await put_approval(database, "d", "approved", NOW - 100 * DAY, expires=NOW - 89 * DAY)
    # Nothing has noticed that these have expired.
    await put_approval(database, "e", "pending", NOW - 100 * DAY)
    await put_approval(database, "f", "approved", NOW - 100 * DAY)
    for level, days in (("session", 100), ("always", 100), ("session", 80)):
        await put_grant(database, level, NOW - days * DAY)
    assert await retention(database).sweep("invocations", 90) == 1
    assert await retention(database).sweep("usage", 400) == 1
    assert await retention(database).sweep("approvals", 90) == 4
    assert [one.id for one in await invocations.page(InvocationFilter(), None, 9) or ()] == ["inv_1"]
    assert [row["day"] for row in await usage.sums(["day"])] == ["2027-01-01"]
    rows = await database.read(lambda db: db.execute("SELECT id FROM approvals ORDER BY id").fetchall())
    assert [row[0] for row in rows] == ["b", "c", "d"]
    assert await count(database, "grants") == 2


async def test_a_sweep_takes_a_few_at_a_time(database: Database) -> None:
    store = InvocationStore(database)
    rows = [call(number, started=1.0) for number in range(AT_ONCE + 5)]
    await database.change(lambda db: [store.adding(row)(db) for row in rows])
    assert [await retention(database).sweep("invocations", 1) for _ in range(3)] == [AT_ONCE, 5, 0]


@pytest.mark.parametrize("kind", SWEEPS)
async def test_there_may_be_nothing_to_sweep(database: Database, kind: str) -> None:
    assert await retention(database).sweep(kind, 1) == 0


async def test_what_an_owner_has_is_forgotten_and_nothing_of_others(database: Database) -> None:
    responses, conversations, chats = ResponseStore(database), ConversationStore(database), ChatStore(database)
    invocations, usage = InvocationStore(database), UsageStore(database)
    for number, owner in enumerate(("ann", "bob")):
        await responses.save(response(f"r_{owner}", 1, owner=owner))
        await conversations.create(StoredConversation(f"c_{owner}", owner, 7, {}), [{"id": "i", "type": "message"}])
        await chats.keep(output("Hi", "Hello", owner=owner, completion="c1"))
        await database.change(invocations.adding(call(number, owner=owner)))
        await database.change(usage.adding([UsagePeriodTotal("2026-11-01", owner, "m", 1)]))
        await put_approval(database, f"a_{owner}", "pending", NOW, caller=owner)
    tables = ["responses", "items", "conversations", "conversation_items", "chats", "chat_messages", "completions"]
    tables += ("tool_invocations", "usage_sums", "approvals")
    before = {table: await count(database, table) for table in tables}
    gone = await retention(database).forget("ann")
    assert {table: await count(database, table) * 2 for table in tables} == before
    assert gone["responses"] == gone["conversations"] == gone["chats"] == gone["usage_sums"] == 1
    assert await responses.load("bob", "r_bob") is not None
    assert await words(chats, "bob") == [["Hi", "Hello"]]
    assert await retention(database).forget("ann") == {}


async def put_grant(database: Database, level: str, created: float) -> None:
    row = (f"{level}_{created}", "ann", "tool", "source", "spec", level, "place", "ann", created)
    await database.change(lambda db: db.execute(f"INSERT INTO grants VALUES ({', '.join('?' * len(row))})", row))


async def put_approval(
    database: Database, id: str, state: str, created: float, caller: str = "ann", expires: float | None = None
) -> None:
    values: dict[str, Any] = {"id": id, "caller": caller, "state": state, "created": created}
    values["expires"] = created + 60 if expires is None else expires
    values |= dict.fromkeys(("session", "run", "call", "tool", "source", "digest", "spec", "policy", "why"), "x")
    values |= {"arguments": "{}", "tainted": 0}
    text = f"INSERT INTO approvals ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
    await database.change(lambda db: db.execute(text, tuple(values.values())))


@pytest.mark.parametrize("kind", SWEEPS)
async def test_records_can_be_kept_for_longer_than_the_calendar_goes_back(database: Database, kind: str) -> None:
    """An error would end the job that deletes all other kinds."""
    assert await retention(database).sweep(kind, 10**15) == 0
