"""Remembered conversations: taken once, kept for thirty days, few enough, and nobody else's (spec: T8)."""

import asyncio

from toolgate.storage.database import Database
from toolgate.storage.peer_conversations import KEPT_SECONDS, PeerConversationStore

DAY = 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


async def test_a_conversation_is_taken_once(storage_url: str) -> None:
    store = PeerConversationStore(database := Database(storage_url))
    await store.keep("p", "ann", "d1", "c1")
    assert await store.take("p", "ann", "d1") == "c1"
    assert await store.take("p", "ann", "d1") is None
    await database.aclose()


async def test_it_is_found_under_its_newest_digest_alone(storage_url: str) -> None:
    store = PeerConversationStore(database := Database(storage_url))
    await store.keep("p", "ann", "d1", "c1")
    await store.keep("p", "ann", "d2", "c1")
    assert await store.take("p", "ann", "d1") is None
    assert await store.take("p", "ann", "d2") == "c1"
    await database.aclose()


async def test_owners_and_peers_do_not_see_each_other(storage_url: str) -> None:
    store = PeerConversationStore(database := Database(storage_url))
    await store.keep("p", "ann", "d", "c1")
    assert await store.take("p", "bob", "d") is None
    assert await store.take("q", "ann", "d") is None
    assert await store.take("p", "ann", "d") == "c1"
    await database.aclose()


async def test_of_several_equal_conversations_the_last_used_is_taken_first(storage_url: str) -> None:
    store = PeerConversationStore(database := Database(storage_url), clock=Clock())
    for conversation in ("c1", "c2", "c3"):
        await store.keep("p", "ann", "d", conversation)
    assert [await store.take("p", "ann", "d") for _ in range(4)] == ["c3", "c2", "c1", None]
    await database.aclose()


async def test_two_processes_over_one_file_never_take_the_same(storage_url: str) -> None:
    """fault: M5"""
    databases = [Database(storage_url) for _ in range(4)]
    stores = [PeerConversationStore(database) for database in databases]
    for number in range(20):
        await stores[0].keep("p", "ann", "d", f"c{number}")
    taken = await asyncio.gather(*[store.take("p", "ann", "d") for store in stores for _ in range(6)])
    found = [conversation for conversation in taken if conversation is not None]
    assert sorted(found) == sorted(f"c{number}" for number in range(20))
    for database in databases:
        await database.aclose()


async def test_what_is_kept_survives_a_new_process_and_what_is_taken_stays_taken(storage_url: str) -> None:
    store = PeerConversationStore(database := Database(storage_url))
    await store.keep("p", "ann", "d1", "c1")
    await store.keep("p", "ann", "d2", "c2")
    await store.take("p", "ann", "d1")
    await database.aclose()
    again = PeerConversationStore(database := Database(storage_url))
    assert await again.take("p", "ann", "d1") is None
    assert await again.take("p", "ann", "d2") == "c2"
    await database.aclose()


async def test_after_thirty_days_it_is_forgotten_and_its_row_goes(storage_url: str) -> None:
    clock = Clock()
    store = PeerConversationStore(database := Database(storage_url), clock=clock)
    await store.keep("p", "ann", "d", "c1")
    clock.now += 29 * DAY
    await store.keep("p", "ann", "e", "c2")
    clock.now += KEPT_SECONDS - 29 * DAY
    assert await store.take("p", "ann", "d") is None
    await PeerConversationStore(database, clock=clock).keep("p", "ann", "f", "c3")
    rows = await database.read(lambda db: db.execute("SELECT conversation FROM peer_conversations").fetchall())
    assert rows == [("c2",), ("c3",)]
    await database.aclose()


async def test_there_are_never_many_more_than_allowed(storage_url: str) -> None:
    clock = Clock()
    store = PeerConversationStore(database := Database(storage_url), most=10, clock=clock)
    for number in range(600):
        await store.keep("p", "ann", f"d{number}", f"c{number}")
    [(count,)] = await database.read(lambda db: db.execute("SELECT COUNT(*) FROM peer_conversations").fetchall())
    assert count <= 10 + 256
    assert await store.take("p", "ann", "d599") == "c599"
    await database.aclose()
