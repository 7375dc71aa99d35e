"""Changes are whole and one after the other, on either engine and from any number of processes (spec: D4)."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from toolgate.conversation.message import Message, Text
from toolgate.storage.accepted_definitions import AcceptedDefinitionStore
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.idempotency import IdempotencyClaimGranted, IdempotencyStore, StoredIdempotentAnswer
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.storage.responses import ResponseStore
from toolgate.storage.runs import RunStore

ADD = "INSERT INTO spending (key, period, amount) VALUES (?, ?, ?)"


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    opened = Database(storage_url)
    yield opened
    await opened.aclose()


def count_up(db: SqlConnection) -> float:
    """Read, then write: what goes wrong unless changes are one after the other."""
    found = db.execute("SELECT amount FROM spending WHERE key = ?", ("n",)).fetchone()
    if found is None:
        db.execute(ADD, ("n", "", 1.0))
        return 1.0
    db.execute("UPDATE spending SET amount = ? WHERE key = ?", (found[0] + 1, "n"))
    return float(found[0]) + 1


async def test_a_change_that_fails_leaves_nothing(database: Database) -> None:
    def work(db: SqlConnection) -> None:
        db.execute(ADD, ("ann", "", 1.0))
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await database.change(work)
    assert await database.read(lambda db: db.execute("SELECT * FROM spending").fetchall()) == []
    await database.change(count_up)


async def test_many_changes_at_once_count_every_one(storage_url: str) -> None:
    """Over two objects, as two nodes would."""
    databases = [Database(storage_url) for _ in range(2)]
    numbers = await asyncio.gather(*[databases[n % 2].change(count_up) for n in range(60)])
    assert sorted(numbers) == [float(number) for number in range(1, 61)]
    for database in databases:
        await database.aclose()


COUNT = """
import asyncio, sys
from tests.storage.test_database import count_up
from toolgate.storage.database import Database
async def main():
    database = Database(sys.argv[1])
    await database.open()
    print("ready", flush=True)
    sys.stdin.readline()
    numbers = await asyncio.gather(*[database.change(count_up) for _ in range(50)])
    await database.aclose()
    print(*[int(number) for number in numbers])
asyncio.run(main())
"""


async def test_two_processes_that_count_never_give_one_number_twice(storage_url: str) -> None:
    """spec: D4"""
    numbers = await asyncio.to_thread(_race, storage_url)
    assert sorted(numbers) == list(range(1, 101))


def _race(url: str) -> list[int]:
    command = [sys.executable, "-c", COUNT, url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return [int(number) for racer in racers for number in racer.communicate(timeout=60)[0].split()]


async def test_two_that_each_look_at_what_the_other_writes_do_not_both_go_on(storage_url: str) -> None:
    """Neither writes what the other wrote, so no row tells them of each other: at most one of two may be on duty off."""
    databases = [Database(storage_url) for _ in range(2)]
    for name in ("ann", "bob"):
        await databases[0].change(lambda db, name=name: db.execute(ADD, (name, "on duty", 1.0)))  # type: ignore[misc]

    def leave(name: str) -> Callable[[SqlConnection], bool]:
        def work(db: SqlConnection) -> bool:
            [on] = db.execute("SELECT count(*) FROM spending WHERE period = ? AND amount = 1", ("on duty",)).fetchone()
            time.sleep(0.02)  # both have looked
            if on > 1:
                db.execute("UPDATE spending SET amount = 0 WHERE key = ?", (name,))
            return bool(on > 1)

        return work

    left = await asyncio.gather(databases[0].change(leave("ann")), databases[1].change(leave("bob")))
    assert sorted(left) == [False, True]
    for database in databases:
        await database.aclose()


async def test_every_text_number_and_truth_comes_back_as_it_was(database: Database) -> None:
    """fault: Z1"""
    texts = ["", "\0", "a\x1ab", "\x1a0", "\x1a\0", "%s ? :name '", "\U0001f600\u202e", "'; DROP TABLE spending; --"]
    for text in texts:
        await database.change(lambda db, text=text: db.execute(ADD, (text, "?", 0.1 + 0.2)))  # type: ignore[misc]
    rows = await database.read(lambda db: db.execute("SELECT key, period, amount FROM spending").fetchall())
    assert sorted(rows) == sorted((text, "?", 0.1 + 0.2) for text in texts)
    select = "SELECT count(*) FROM spending WHERE key = :key AND period = '?' AND key NOT LIKE ':x%'"
    for text in texts:
        assert await database.read(lambda db, text=text: db.execute(select, {"key": text}).fetchone()) == (1,)  # type: ignore[misc]

    def numbers(db: SqlConnection) -> list[tuple[int, bytes]]:
        row = ("c", 2**62, True, b"\0\xff")
        db.execute("INSERT INTO conversation_items (conversation, place, id, item) VALUES (?, ?, ?, ?)", row)
        return db.execute("SELECT place, item FROM conversation_items").fetchall()

    assert await database.change(numbers) == [(2**62, b"\0\xff")]


async def test_pins_are_kept_replaced_and_forgotten(database: Database) -> None:
    store = AcceptedDefinitionStore(database)
    assert await store.load("s") is None
    await store.save("s", {})
    assert await store.load("s") == {}
    await store.save("s", {"a": b"1", "b": b"2"})
    await store.save("s", {"a": b"3"})
    assert await store.load("s") == {"a": b"3", "b": b"2"}
    await store.forget("s")
    assert await store.load("s") is None


async def test_registrations_are_reported_oldest_first_and_one_that_comes_again_is_the_newest(
    database: Database,
) -> None:
    store = RegisteredSourceStore(database)
    for name in ("a", "b", "c", "a"):
        await store.save(name, name.encode())
    await store.delete("b")
    assert await store.all() == [("c", b"c"), ("a", b"a")]


async def test_what_a_run_has_begun_is_remembered_call_by_call(database: Database) -> None:
    store = HiddenTurnStore(database)
    await store.keep("ann", ["k", "l"], ())
    for call in ("one", "two"):
        await store.start("ann", "k", call)
    await store.keep("ann", ["k"], (), forget=["l"])
    found = await store.find("ann", ["k", "l"])
    assert {key: kept.started for key, kept in found.items()} == {"k": {"one", "two"}}
    assert await store.find("bob", ["k"]) == {}


async def test_more_keys_than_a_statement_takes_parameters_are_looked_for(database: Database) -> None:
    """PostgreSQL takes 65,535."""
    store, responses = HiddenTurnStore(database), ResponseStore(database)
    await store.keep("ann", ["ran:7", "ran:69999"], ())
    assert (await store.find("ann", [f"ran:{number}" for number in range(70_000)])).keys() == {"ran:7", "ran:69999"}
    assert await responses.items("ann", [f"msg_{number}" for number in range(70_000)]) == {}
    assert await RunStore(database, "node").renew([f"run_{number}" for number in range(70_000)]) == []


async def test_a_turn_is_dropped_with_the_last_of_its_keys(database: Database) -> None:
    store = HiddenTurnStore(database)
    await store.keep("ann", ["k", "l"], [Message("user", (Text("x" * 1000),))], turn="t")
    await store.keep("ann", (), (), forget=["k"])
    assert len((await store.find("ann", ["l"]))["l"].messages) == 1
    await store.keep("ann", ["l"], (), turn="other")
    left = await database.read(lambda db: db.execute("SELECT turn FROM turn_parts").fetchall())
    assert left == []


async def test_a_private_turn_is_read_by_its_keys_alone(database: Database) -> None:
    store, secret, opening = HiddenTurnStore(database), b"s" * 32, b"o" * 32
    output = [Message("user", (Text("plain words"),))]
    await store.keep("ann", ["k", "ran:1"], output, secret=secret, secrets={"k": opening})
    assert (await store.find("ann", ["k"], secrets={"k": opening}))["k"].messages == tuple(output)
    assert await store.find("ann", ["k"], secrets={"k": b"x" * 32}) == {}
    assert await store.find("ann", ["k"]) == {}
    assert (await store.find("ann", ["ran:1"]))["ran:1"].messages == ()
    rows = await database.read(lambda db: db.execute("SELECT messages FROM turn_parts").fetchall())
    assert b"plain words" not in bytes(rows[0][0])


async def test_of_many_claims_of_a_key_on_two_nodes_one_is_executed(storage_url: str) -> None:
    """fault: M2"""
    databases = [Database(storage_url) for _ in range(2)]
    stores = [IdempotencyStore(database) for database in databases]
    for round in range(5):
        claims = [stores[n % 2].claim("ann", f"key{round}", b"digest", f"holder{n}", b"s") for n in range(30)]
        claimed = [type(claim) is IdempotencyClaimGranted for claim in await asyncio.gather(*claims)]
        assert claimed.count(True) == 1
        holder = f"holder{claimed.index(True)}"
        answer = StoredIdempotentAnswer(200, [(b"a", b"b")], b"body")
        assert await stores[0].keep("ann", f"key{round}", holder, answer, b"s")
        assert await stores[1].claim("ann", f"key{round}", b"digest", "late", b"s") == answer
    for database in databases:
        await database.aclose()
