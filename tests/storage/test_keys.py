"""Keys in the database (spec: E5)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from toolgate.conversation.errors import Conflict
from toolgate.storage.database import Database
from toolgate.storage.keys import KeyStore, StoredKey

KEY = StoredKey("key_1", "carl", "Sales", "00" * 32, "tg-abc…wxyz", '{"scopes":["chat"]}', 1_800_000_000)

CHANGES: dict[str, Any] = {"owner": "x", "digest": "11" * 32, "expires": 7, "former": "00" * 32, "former_until": 8}


@pytest.fixture
async def store(storage_url: str) -> AsyncIterator[KeyStore]:
    database = Database(storage_url)
    yield KeyStore(database)
    await database.aclose()


async def test_a_key_is_kept_as_it_was_given(store: KeyStore) -> None:
    assert await store.all() == (0, [])
    odd = replace(KEY, id="key_2", name="dora", owner="'; DROP TABLE api_keys; --", expires=4_000_000_000)
    assert await store.create(KEY)
    assert await store.create(odd)
    assert await store.all() == (2, [KEY, odd])


async def test_a_name_is_taken_once_even_if_its_key_is_revoked(store: KeyStore) -> None:
    await store.create(KEY)
    await store.change(KEY.id, lambda key: replace(key, revoked=5))
    before = await store.number()
    assert not await store.create(replace(KEY, id="key_2"))
    assert await store.number() == before, "nothing has changed"


async def test_every_change_is_counted_and_a_use_is_not(store: KeyStore) -> None:
    await store.create(KEY)
    changed = await store.change(KEY.id, lambda key: replace(key, **CHANGES))
    assert await store.number() == 2
    await store.touch({KEY.id: 1_900_000_000, "key_unknown": 1})
    assert changed is not None
    assert await store.all() == (2, [replace(changed, last_used=1_900_000_000)])
    assert await store.change("key_unknown", lambda key: key) is None


async def test_a_change_that_is_refused_changes_nothing(store: KeyStore) -> None:
    await store.create(KEY)

    def refuse(key: StoredKey) -> StoredKey:
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.change(KEY.id, refuse)
    assert await store.all() == (1, [KEY])


async def test_changes_at_the_same_time_are_all_made(storage_url: str) -> None:
    """Two nodes change a key at once; none of the changes is lost."""
    databases = [Database(storage_url), Database(storage_url)]
    stores = [KeyStore(database) for database in databases]
    await stores[0].create(replace(KEY, owner=""))

    def longer(key: StoredKey) -> StoredKey:
        return replace(key, owner=key.owner + "x")

    await asyncio.gather(*[store.change(KEY.id, longer) for store in stores for _ in range(5)])
    number, [kept] = await stores[1].all()
    assert (number, kept.owner) == (11, "x" * 10)
    for database in databases:
        await database.aclose()
