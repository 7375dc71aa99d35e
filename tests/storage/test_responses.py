"""Stored responses: kept, chained, forgotten, and invisible to others."""

from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore, StoredResponse


def stored(id: str, previous: str | None = None, owner: str = "ann") -> StoredResponse:
    return StoredResponse(id, owner, previous, 1, [{"type": "message", "n": id}], {"id": id, "output": []})


async def test_a_saved_response_survives_a_new_process(storage_url: str) -> None:
    store = ResponseStore(database := Database(storage_url))
    await store.save(stored("a"))
    await database.aclose()
    again = ResponseStore(database := Database(storage_url))
    assert await again.load("ann", "a") == stored("a")
    await database.aclose()


async def test_a_chain_is_reported_oldest_first_and_not_at_all_when_a_link_is_gone(storage_url: str) -> None:
    store = ResponseStore(database := Database(storage_url))
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        await store.save(stored(id, previous))
    assert [response.id for response in await store.chain("ann", "c")] == ["a", "b", "c"]
    assert await store.delete("ann", "b")
    assert await store.chain("ann", "c") == []
    await database.aclose()


async def test_an_item_is_found_by_its_id_until_its_response_is_deleted(storage_url: str) -> None:
    store = ResponseStore(database := Database(storage_url))
    item = {"type": "message", "id": "msg_1"}
    await store.save(StoredResponse("a", "ann", None, 1, [], {"id": "a", "output": [{"type": "odd"}, item]}))
    assert await store.item("ann", "msg_1") == item
    assert await store.item("bob", "msg_1") is None
    assert await store.delete("ann", "a")
    assert await store.item("ann", "msg_1") is None
    await database.aclose()


async def test_another_owner_sees_nothing_and_deletes_nothing(storage_url: str) -> None:
    store = ResponseStore(database := Database(storage_url))
    await store.save(stored("a"))
    assert await store.load("bob", "a") is None
    assert not await store.delete("bob", "a")
    assert await store.load("ann", "a") is not None
    await database.aclose()
