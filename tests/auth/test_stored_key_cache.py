"""The database's keys in one process, while others change them and while the database is away (spec: E5; fault: Z5, M7)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.tools.execution.toolwork import soon
from toolgate.auth.authenticator import ANONYMOUS
from toolgate.auth.key_registry import KeyRegistry
from toolgate.auth.stored_key_cache import StoredKeyCache
from toolgate.config import Config, KeySettings, Secret, ServerSettings
from toolgate.conversation.errors import GatewayOverloaded, Unauthenticated
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry

KEY = StoredKey("key_1", "carl", "", "00" * 32, "tg-abc…wxyz", '{"scopes":["chat"]}', 100)
OTHER = replace(KEY, id="key_2", name="dora", digest="11" * 32)


class Lines:
    """A log that a test reads."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.log = Logger("info", fd=self._write)

    def messages(self) -> list[str]:
        """What was written since."""
        os.set_blocking(self._read, False)
        try:
            lines = os.read(self._read, 100_000).splitlines()
        except BlockingIOError:
            return []
        return [json.loads(line).get("problem", "") for line in lines]

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()


class Flaky(KeyStore):
    """A store that can be away."""

    away = False
    looks = 0

    async def number(self) -> int:
        self.looks += 1
        if self.away:
            raise GatewayOverloaded("The storage is not available.")
        return await super().number()

    async def all(self) -> tuple[int, list[StoredKey]]:
        if self.away:
            raise GatewayOverloaded("The storage is not available.")
        return await super().all()

    async def several_looks(self) -> None:
        """Wait until it was looked at several times."""
        until = self.looks + 4
        await soon(lambda: self.looks >= until)


class Ring:
    """A keyring that looks every few milliseconds, and what it told."""

    def __init__(self, store: KeyStore, log: Logger) -> None:
        self.now = 1000.0
        self.used: set[str] = set()
        self.changes: asyncio.Queue[set[str]] = asyncio.Queue()
        self.ring = StoredKeyCache(store, self._hear, self._take, log, every=0.01, clock=lambda: self.now)

    def _hear(self, held: Mapping[str, StoredKey]) -> None:
        self.changes.put_nowait({key.name for key in held.values()})

    def _take(self) -> set[str]:
        used, self.used = self.used, set()
        return used

    async def next(self) -> set[str]:
        """The names in force after the next change."""
        return await asyncio.wait_for(self.changes.get(), 30)


@pytest.fixture
async def store() -> AsyncIterator[Flaky]:
    database = Database(None)
    yield Flaky(database)
    await database.aclose()


@pytest.fixture
async def ring(store: Flaky, lines: Lines) -> AsyncIterator[Ring]:
    await store.create(KEY)
    ring = Ring(store, lines.log)
    await ring.ring.open()
    assert await ring.next() == {"carl"}
    yield ring
    await ring.ring.aclose()


async def test_what_another_process_changes_is_seen(store: Flaky, ring: Ring) -> None:
    await store.create(OTHER)
    assert await ring.next() == {"carl", "dora"}
    await store.change(KEY.id, lambda key: replace(key, revoked=5))
    assert await ring.next() == {"dora"}


async def test_requests_with_unknown_keys_share_a_look_for_new_ones(store: Flaky, lines: Lines) -> None:
    """However many strangers send keys; fault: Z5"""
    ring = StoredKeyCache(store, lambda keys: None, set, lines.log, every=600)
    await ring.open()
    await store.create(OTHER)
    before = store.looks
    await asyncio.gather(*[ring.find_new_keys() for _ in range(500)])
    assert (store.looks - before, list(ring.valid)) == (1, [OTHER.id])
    store.away = True
    for _ in range(3):
        await ring.find_new_keys()
    assert store.looks - before == 2, "while the database is away, nothing is looked for"
    await ring.aclose()


async def test_without_the_database_the_keys_last_read_stay_in_force_and_that_is_logged_once(
    store: Flaky, ring: Ring, lines: Lines
) -> None:
    store.away = True
    await store.several_looks()
    assert (lines.messages(), ring.changes.empty()) == (["The storage is not available."], True)
    await store.create(OTHER)
    store.away = False
    assert await ring.next() == {"carl", "dora"}
    assert lines.messages() == ["the database is back"]


async def test_a_server_that_ends_without_the_database_does_not_log_that_it_is_back(
    store: Flaky, ring: Ring, lines: Lines
) -> None:
    store.away = True
    await store.several_looks()
    await ring.ring.aclose()
    assert lines.messages() == ["The storage is not available."]


async def test_a_key_expires_also_without_the_database(store: Flaky, ring: Ring) -> None:
    await store.change(KEY.id, lambda key: replace(key, expires=1010))
    assert await ring.next() == {"carl"}
    store.away = True
    ring.now = 1010.0
    assert await ring.next() == set()


async def test_a_former_secret_ends_also_without_the_database(store: Flaky, ring: Ring) -> None:
    await store.change(KEY.id, lambda key: replace(key, digest="22" * 32, former=KEY.digest, former_until=1010))
    assert await ring.next() == {"carl"}
    assert ring.ring.valid[KEY.id].former == KEY.digest
    store.away = True
    ring.now = 1010.0
    assert await ring.next() == {"carl"}
    assert ring.ring.valid[KEY.id].former is None


async def test_a_use_is_noted_at_most_once_a_minute_and_at_the_end(store: Flaky, ring: Ring) -> None:
    ring.used.add(KEY.id)
    await store.several_looks()
    ring.now = 1030.0
    ring.used.add(KEY.id)
    await store.several_looks()
    assert (await store.all())[1][0].last_used == 1000
    ring.now = 1090.0
    ring.used.add(KEY.id)
    await ring.ring.aclose()
    assert (await store.all())[1][0].last_used == 1090


async def test_the_first_key_of_all_is_seen_where_another_process_made_it(store: Flaky, lines: Lines) -> None:
    """A worker without keys must notice, or it stays open beside others that are not."""
    ring = Ring(store, lines.log)
    await ring.ring.open()
    assert await ring.next() == set()
    await store.create(KEY)
    assert await ring.next() == {"carl"}
    await ring.ring.aclose()


async def test_a_key_that_expires_or_is_revoked_as_the_last_one_opens_nothing(tmp_path: Path, lines: Lines) -> None:
    database = Database(f"sqlite:///{tmp_path}/t.db")
    await KeyStore(database).create(replace(KEY, revoked=5))
    access = KeyRegistry(Config(), database, Telemetry(lines.log, Metrics()))
    await access.open()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate([])
    await access.aclose()
    messages = KeyRegistry(Config(server=ServerSettings(open=True)), database, Telemetry(lines.log, Metrics()))
    await messages.open()
    assert messages.authenticator.authenticate([]) is ANONYMOUS
    await messages.aclose()
    await database.aclose()


async def test_a_database_of_keys_that_is_lost_opens_nothing(tmp_path: Path, lines: Lines) -> None:
    config = Config(source=tmp_path / "toolgate.yaml")
    database = Database(tmp_path / "t.db")
    await KeyStore(database).create(KEY)
    access = KeyRegistry(config, database, Telemetry(lines.log, Metrics()))
    await access.open()
    await access.aclose()
    await database.aclose()
    database = Database(tmp_path / "another.db")
    again = KeyRegistry(config, database, Telemetry(lines.log, Metrics()))
    await again.open()
    with pytest.raises(Unauthenticated):
        again.authenticator.authenticate([])
    await again.aclose()
    await database.aclose()


@pytest.mark.parametrize("source", [True, False], ids=["file", "built-in"])
async def test_a_database_that_is_replaced_under_a_running_server_opens_nothing(
    tmp_path: Path, lines: Lines, source: bool
) -> None:
    database = Database(tmp_path / "t.db")
    await KeyStore(database).create(KEY)
    config = Config(source=tmp_path / "toolgate.yaml" if source else None)
    access = KeyRegistry(config, database, Telemetry(lines.log, Metrics()))
    await access.open()

    def empty(db: SqlConnection) -> None:
        for table in ("api_keys", "api_key_changes", "key_demand"):
            db.execute(f"DELETE FROM {table}")

    await database.change(empty)
    await access.stored.refresh()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate([])
    access.configure(replace(config, server=ServerSettings(open=True)))
    assert access.authenticator.authenticate([]) is ANONYMOUS
    await access.aclose()
    await database.aclose()


async def test_requests_without_a_key_are_refused_until_the_keys_are_known(tmp_path: Path, lines: Lines) -> None:
    """A database that holds keys and cannot be read must not open the server to all requests."""
    folder = tmp_path / "gone"
    folder.write_text("this is no folder")
    database = Database(folder / "toolgate.db")
    access = KeyRegistry(Config(), database, Telemetry(lines.log, Metrics()))
    await access.open()
    with pytest.raises(GatewayOverloaded):
        access.authenticator.authenticate([])
    await access.aclose()
    await database.aclose()


async def test_keys_of_the_database_alone_close_a_server_too() -> None:
    """The configuration has lost its keys, yet those that were made are there."""
    database = Database(None)
    await KeyStore(database).create(KEY)
    access = KeyRegistry(Config(), database, Telemetry(Logger("error"), Metrics()))
    await access.open()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate([])
    await access.aclose()
    await database.aclose()


async def test_where_the_configuration_has_the_name_its_key_is_the_one(lines: Lines) -> None:
    database = Database(None)
    await KeyStore(database).create(KEY)
    configured = KeySettings(name="carl", key=Secret("carl-key"), scopes=("admin",))
    access = KeyRegistry(Config(keys=(configured,)), database, Telemetry(lines.log, Metrics()))
    await access.open()
    caller = access.authenticator.named("carl")
    assert caller is not None
    assert (set(caller.scopes), caller.id) == ({"admin"}, "")
    assert bytes.fromhex(KEY.digest) not in access.authenticator._callers
    assert lines.messages() == ["the configuration has keys of the same names"]
    await access.aclose()
    await database.aclose()


async def test_a_key_that_another_version_wrote_is_not_in_force_and_the_rest_are(lines: Lines) -> None:
    database = Database(None)
    store = KeyStore(database)
    await store.create(replace(KEY, rights='{"scopes":["chat","fly"]}'))
    await store.create(replace(OTHER, rights='{"scopes":["chat"],"wings":2}'))
    access = KeyRegistry(Config(), database, Telemetry(lines.log, Metrics()))
    await access.open()
    assert [access.authenticator.named(name) is not None for name in ("carl", "dora")] == [False, True]
    assert lines.messages() == ["the rights of these keys were written by another version"]
    await access.aclose()
    await database.aclose()
