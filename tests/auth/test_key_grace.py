"""A rotated key whose former secret stays good for a while: two secrets, one key (E5, fault: Z5)."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import PATHS, HttpConnection, body
from tests.api.test_keys import begin, eventually, make, on_disk, rest, use
from tests.auth.tenants import Tenants, tenants
from toolgate.api.keys import LONGEST_GRACE
from toolgate.config import Secret


@pytest.fixture
async def served(tmp_path: Path, storage_url: str) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path, storage=Secret(storage_url)) as served:
        yield served


async def rotate(served: Tenants, grace: int | None) -> dict[str, Any]:
    output = {} if grace is None else {"grace_seconds": grace}
    received = await served.ask("POST", "/v1/keys/carl/rotate", output, "root")
    assert received.status_code == 200, received.text
    return dict(received.json())


async def statuses(served: Tenants, *keys: str) -> list[int]:
    return [(await use(served, key)).status_code for key in keys]


async def test_within_its_grace_the_former_secret_opens_the_same_and_counts_for_the_same(served: Tenants) -> None:
    made = await make(served, requests_per_minute=3)
    before = int(time.time())
    rotated = await rotate(served, 3600)
    assert before + 3600 <= rotated["former_expires_at"] <= time.time() + 3601
    old, new = {"x-api-key": made["key"]}, {"x-api-key": rotated["key"]}
    kept = (await served.ask("POST", "/v1/conversations", {}, headers=old)).json()["id"]
    assert (await use(served, rotated["key"], f"/v1/conversations/{kept}")).status_code == 200
    asked = [
        await served.ask("POST", PATHS["openai_chat"], body("openai_chat", "m", False), headers=headers)
        for headers in (old, new, old, new)
    ]
    assert [one.status_code for one in asked] == [200, 200, 429, 429], "the conversation counted, too"


async def test_a_grace_of_nothing_is_none(served: Tenants) -> None:
    made = await make(served)
    for grace in (0, None):
        rotated = await rotate(served, grace)
        assert rotated["former_expires_at"] is None
        assert await statuses(served, made["key"], rotated["key"]) == [401, 200]
        made = rotated


async def test_a_change_of_what_the_key_may_do_holds_for_both_secrets(served: Tenants) -> None:
    made = await make(served, scopes=["chat"])
    rotated = await rotate(served, 3600)
    await served.ask("POST", "/v1/keys/carl", {"scopes": ["tools"]}, "root")
    assert await statuses(served, made["key"], rotated["key"]) == [403, 403]


async def test_revoking_the_key_ends_both_secrets_at_once(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served)
    rotated = await rotate(served, 3600)
    async with HttpConnection(served.url) as caller:
        await begin(served, caller, "openai_chat", made["key"])
        revoked = (await served.ask("DELETE", "/v1/keys/carl", who="root")).json()
        assert b"no longer valid" in await rest(caller)
    assert (revoked["state"], revoked["former_expires_at"]) == ("revoked", None)
    assert await statuses(served, made["key"], rotated["key"]) == [401, 401]


async def test_rotating_again_ends_the_secret_before_the_last(served: Tenants) -> None:
    first = await make(served)
    second = await rotate(served, 3600)
    async with HttpConnection(served.url) as caller:
        await begin(served, caller, "openai_chat", first["key"])
        third = await rotate(served, 3600)
        assert b"no longer valid" in await rest(caller)
    assert await statuses(served, first["key"], second["key"], third["key"]) == [401, 200, 200]
    fourth = await rotate(served, None)
    assert await statuses(served, second["key"], third["key"], fourth["key"]) == [401, 401, 200]


async def test_when_the_grace_is_over_the_former_secret_is_dead_on_every_node(
    served: Tenants, tmp_path: Path, storage_url: str
) -> None:
    """fault: Z5: with what it has open; the other secret goes on."""
    async with tenants(tmp_path, storage=Secret(storage_url)) as there:
        made = await make(served)
        await eventually(there, made["key"], 200)
        async with HttpConnection(there.url) as caller:
            await begin(there, caller, "openai_chat", made["key"])
            rotated = await rotate(served, 2)
            await eventually(there, rotated["key"], 200)
            over = rotated["former_expires_at"]
            emitted = await rest(caller)
            assert time.time() >= over
        assert b"no longer valid" in emitted
        assert await statuses(there, made["key"], rotated["key"]) == [401, 200]
        await eventually(served, made["key"], 401)
        assert (await use(served, rotated["key"])).status_code == 200


async def test_a_former_secret_is_not_kept_either_and_survives_restart_and_reload(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/t.db")
    async with tenants(tmp_path, storage=storage) as served:
        made = await make(served)
        rotated = await rotate(served, 3600)
    assert made["key"].encode() not in on_disk(tmp_path)
    async with tenants(tmp_path, storage=storage) as served:
        assert await statuses(served, made["key"], rotated["key"]) == [200, 200]
        config = tmp_path / "toolgate.yaml"
        root = 'keys: [{name: root, key: "root-key", scopes: [chat, tools, admin]}]'
        models = "models: [{name: m, upstream: builtin, model: echo}]"
        config.write_text(f"server: {{port: 0}}\n{root}\n{models}\nstorage: '{storage.reveal()}'\n")
        served.gate.reload(config)
        assert await statuses(served, made["key"], rotated["key"]) == [200, 200]


WRONG: tuple[tuple[Any, str], ...] = (
    ({"grace_seconds": -1}, "grace_seconds"),
    ({"grace_seconds": LONGEST_GRACE + 1}, "grace_seconds"),
    ({"grace_seconds": "1h"}, "grace_seconds"),
    ({"grace_seconds": 1.5}, "grace_seconds"),
    ({"grace_seconds": True}, "grace_seconds"),
    ({"grace": 60}, "grace"),
    ({"grace_seconds": 60, "former": "tg-x"}, "former"),
)


async def test_a_grace_that_is_none_or_too_long_rotates_nothing(tmp_path: Path) -> None:
    async with tenants(tmp_path) as served:
        made = await make(served)
        for output, param in WRONG:
            received = await served.ask("POST", "/v1/keys/carl/rotate", output, "root")
            assert (received.status_code, received.json()["error"]["param"]) == (400, param), output
        assert (await use(served, made["key"])).status_code == 200
        longest = await rotate(served, LONGEST_GRACE)
        assert longest["former_expires_at"] is not None


async def test_a_body_without_a_length_is_read_as_well(tmp_path: Path) -> None:
    """It comes in chunks, and is no empty body for that."""
    async with tenants(tmp_path) as served:
        made = await make(served)
        async with HttpConnection(served.url) as caller:
            output = b'{"grace_seconds": 60}'
            head = b"POST /v1/keys/carl/rotate HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: root-key\r\n"
            head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            caller.writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(output), output))
            received = await asyncio.wait_for(caller.response(), 30)
        assert received.status == 200
        assert received.json["former_expires_at"] is not None
        assert (await use(served, made["key"])).status_code == 200
