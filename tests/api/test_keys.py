"""Keys of the database: created, shown once, changed, rotated, revoked, and then invalid everywhere (E5, fault: Z5)."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.auth.tenants import Tenants, tenants
from tests.tools.execution.toolwork import call, soon
from toolgate.config import Secret
from toolgate.config.settings import ApprovalSettings, ServerToolSettings


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Tenants]:
    async with tenants(tmp_path) as served:
        yield served


async def make(served: Tenants, name: str = "carl", **fields: Any) -> dict[str, Any]:
    received = await served.ask("POST", "/v1/keys", {"name": name, **fields}, "root")
    assert received.status_code == 200, received.text
    return dict(received.json())


async def use(served: Tenants, key: str, path: str = "/v1/models") -> httpx.Response:
    return await served.ask("GET", path, headers={"x-api-key": key})


async def test_a_created_key_is_valid_at_once_and_for_its_scopes_only(served: Tenants) -> None:
    made = await make(served, scopes=["chat"], owner="Carl of Sales", models=["m"])
    assert re.fullmatch(r"tg-[\w-]{43}", made["key"])
    assert (await use(served, made["key"])).status_code == 200
    assert (await use(served, made["key"], "/v1/tools")).status_code == 403
    assert (await use(served, made["key"], "/v1/keys")).status_code == 403
    assert (made["state"], made["owner"], made["source"]) == ("active", "Carl of Sales", "database")


async def test_a_key_is_valid_on_another_node_as_soon_as_it_is_created_or_rotated(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/t.db")
    async with tenants(tmp_path, storage=storage) as here, tenants(tmp_path, storage=storage) as there:
        made = await make(here)
        assert (await use(there, made["key"])).status_code == 200
        rotated = (await here.ask("POST", "/v1/keys/carl/rotate", {}, "root")).json()
        assert (await use(there, rotated["key"])).status_code == 200
        refused = await use(there, f"tg-{'x' * 43}")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await use(there, rotated["key"], "/v1/keys")).status_code == 403


def on_disk(folder: Path) -> bytes:
    return b"".join([file.read_bytes() for file in folder.glob("t.db*")])


async def test_a_key_is_returned_once_and_neither_stored_nor_listed(tmp_path: Path) -> None:
    async with tenants(tmp_path, storage=Secret(f"sqlite:///{tmp_path}/t.db")) as kept:
        received = await kept.ask("POST", "/v1/keys", {"name": "carl"}, "root", {"idempotency-key": "once"})
        made, headers = received.json(), received.headers
        assert headers["cache-control"] == "no-store"
        for path in ("/v1/keys", "/v1/keys/carl", f"/v1/keys/{made['id']}"):
            listed = (await kept.ask("GET", path, who="root")).text
            assert made["shown"] in listed
            assert made["key"] not in listed
            assert "digest" not in listed
        changed = await kept.ask("POST", "/v1/keys/carl", {"owner": "x"}, "root")
        assert "key" not in changed.json()
    written = on_disk(tmp_path)
    assert made["name"].encode() in written
    assert made["key"].encode() not in written
    assert made["key"][3:-4].encode() not in written


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "x" * 65}, "name"),
    ({"name": "anonymous"}, "name"),
    ({"name": "key_x"}, "name"),
    ({"name": "c", "role": "admin"}, "role"),
    ({"name": "c", "tenant_id": "ann"}, "tenant_id"),
    ({"name": "c", "digest": "00"}, "digest"),
    ({"name": "c", "key": "tg-mine"}, "key"),
    ({"name": "c", "id": "key_1"}, "id"),
    ({"name": "c", "last_used_at": 1}, "last_used_at"),
    ({"name": "c", "revoked_at": None}, "revoked_at"),
    ({"name": "c", "scopes": []}, "scopes"),
    ({"name": "c", "scopes": ["root"]}, "scopes"),
    ({"name": "c", "scopes": "admin"}, "scopes"),
    ({"name": "c", "scopes": [["admin"]]}, "scopes[0]"),
    ({"name": "c", "models": ["nope"]}, "models[0]"),
    ({"name": "c", "tools": ["x" * 257]}, "tools[0]"),
    ({"name": "c", "tools": ["x"] * 129}, "tools"),
    ({"name": "c", "concurrency": -1}, "concurrency"),
    ({"name": "c", "requests_per_minute": True}, "requests_per_minute"),
    ({"name": "c", "budget": {"amount": 0}}, "budget.amount"),
    ({"name": "c", "budget": {"amount": 1, "period": "year"}}, "budget.period"),
    ({"name": "c", "budget": {"amount": 1, "spent": 0}}, "budget.spent"),
    ({"name": "c", "expires_at": 1}, "expires_at"),
    ({"name": "c", "owner": "a\nb"}, "owner"),
)


async def test_a_body_with_wrong_or_unknown_fields_creates_nothing(served: Tenants) -> None:
    """fault: Z8: mass assignment."""
    for given, param in WRONG:
        received = await served.ask("POST", "/v1/keys", given, "root")
        assert (received.status_code, received.json()["error"]["param"]) == (400, param), given
    listed = (await served.ask("GET", "/v1/keys", who="root")).json()["data"]
    assert {one["source"] for one in listed} == {"configuration"}


async def test_a_change_names_what_changes_and_null_takes_it_back(served: Tenants) -> None:
    made = await make(served, scopes=["chat", "tools"], concurrency=3, budget={"amount": 2.5, "period": "day"})
    for unknown in ({"name": "dora"}, {"role": "admin"}, {"budget": {"amount": 1, "used": 0}}):
        assert (await served.ask("POST", "/v1/keys/carl", unknown, "root")).status_code == 400
    change = {"concurrency": None, "tools": ["read*"], "owner": "Sales"}
    changed = (await served.ask("POST", f"/v1/keys/{made['id']}", change, "root")).json()
    assert (changed["concurrency"], changed["tools"], changed["owner"]) == (0, ["read*"], "Sales")
    assert (changed["scopes"], changed["budget"]) == (["chat", "tools"], {"amount": 2.5, "period": "day"})
    shown = await use(served, made["key"], "/v1/tools")
    assert [one["name"] for one in shown.json()["data"]] == ["read"]
    await served.ask("POST", "/v1/keys/carl", {"scopes": ["chat"]}, "root")
    assert (await use(served, made["key"], "/v1/tools")).status_code == 403


async def test_a_name_is_taken_once_and_for_ever(served: Tenants) -> None:
    """What its first holder owns must not pass to the next."""
    made = await make(served)
    for name in ("carl", "ann"):
        again = await served.ask("POST", "/v1/keys", {"name": name}, "root")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "name_taken")
    revoked = (await served.ask("DELETE", f"/v1/keys/{made['id']}", who="root")).json()
    assert revoked["state"] == "revoked"
    assert (await served.ask("POST", "/v1/keys", {"name": "carl"}, "root")).status_code == 409


async def test_keys_of_the_configuration_are_shown_here_and_changed_there(served: Tenants) -> None:
    shown = (await served.ask("GET", "/v1/keys/ann", who="root")).json()
    assert (shown["source"], shown["scopes"]) == ("configuration", ["chat", "tools"])
    for method, path in (("POST", "/v1/keys/ann"), ("DELETE", "/v1/keys/ann"), ("POST", "/v1/keys/ann/rotate")):
        received = await served.ask(method, path, {} if method == "POST" else None, "root")
        assert (received.status_code, received.json()["error"]["code"]) == (409, "configured_key")


async def test_without_an_admin_in_the_configuration_no_key_can_be_made(tmp_path: Path) -> None:
    """Otherwise the first key would lock its maker out."""
    async with tenants(tmp_path, keys=()) as served:
        received = await served.ask("POST", "/v1/keys", {"name": "carl", "scopes": ["admin"]})
        assert (received.status_code, received.json()["error"]["code"]) == (409, "no_admin_key")
        assert (await served.ask("GET", "/v1/models")).status_code == 200


async def test_a_rotated_key_has_a_new_secret_and_the_same_name_and_the_old_one_is_dead(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served)
    kept = await served.ask("POST", "/v1/conversations", {}, headers={"x-api-key": made["key"]})
    rotated = (await served.ask("POST", f"/v1/keys/{made['id']}/rotate", {}, "root")).json()
    assert rotated["key"] != made["key"]
    assert (await use(served, made["key"])).status_code == 401
    found = await use(served, rotated["key"], f"/v1/conversations/{kept.json()['id']}")
    assert found.status_code == 200


async def test_a_revoked_key_is_dead_at_once_and_stays_so(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served)
    assert (await served.ask("DELETE", "/v1/keys/carl", who="root")).status_code == 200
    assert (await use(served, made["key"])).status_code == 401
    for method, path in (("POST", "/v1/keys/carl"), ("POST", "/v1/keys/carl/rotate")):
        received = await served.ask(method, path, {}, "root")
        assert (received.status_code, received.json()["error"]["code"]) == (409, "key_revoked")
    again = await served.ask("DELETE", "/v1/keys/carl", who="root")
    assert (again.status_code, again.json()["state"]) == (200, "revoked")


async def test_an_expired_key_is_dead_when_its_time_has_come(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served, expires_at=int(time.time()) + 3600)
    assert (await use(served, made["key"])).status_code == 200
    soon = {"expires_at": int(time.time()) + 2}
    assert (await served.ask("POST", "/v1/keys/carl", soon, "root")).status_code == 200
    await eventually(served, made["key"], 401)
    assert time.time() >= soon["expires_at"]
    assert (await served.ask("GET", "/v1/keys/carl", who="root")).json()["state"] == "expired"


async def test_limits_of_a_key_hold_and_change_with_it(served: Tenants) -> None:
    made = await make(served, requests_per_minute=1)
    question, headers = body("openai_chat", "m", False), {"x-api-key": made["key"]}
    answers = [await served.ask("POST", PATHS["openai_chat"], question, headers=headers) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]
    await served.ask("POST", "/v1/keys/carl", {"requests_per_minute": None}, "root")
    assert (await served.ask("POST", PATHS["openai_chat"], question, headers=headers)).status_code == 200


async def test_a_model_that_the_key_may_not_use_does_not_exist_for_it(served: Tenants) -> None:
    made = await make(served, models=["x*"])
    received = await served.ask(
        "POST", PATHS["openai_chat"], body("openai_chat", "m", False), headers={"x-api-key": made["key"]}
    )
    assert received.status_code == 404


async def test_revoking_the_key_of_the_request_itself_is_answered(tmp_path: Path) -> None:
    """The request that ends a key is spared, however long its answer takes: the server has yet to read the spending."""
    storage = Secret(f"sqlite:///{tmp_path}/t.db")
    async with tenants(tmp_path, storage=storage) as served:
        made = await make(served, scopes=["admin"])
    async with tenants(tmp_path, storage=storage) as served:
        received = await served.ask("DELETE", "/v1/keys/carl", headers={"x-api-key": made["key"]})
        assert (received.status_code, received.json()["state"]) == (200, "revoked")
        assert (await served.ask("GET", "/v1/keys", headers={"x-api-key": made["key"]})).status_code == 401


async def test_a_key_that_rotates_itself_gets_its_new_secret_while_others_read_the_keys(served: Tenants) -> None:
    """The request was ended with 401 by the first of them, its old secret was invalid, and its new one lost."""
    secret = (await make(served, scopes=["admin"]))["key"]
    for _ in range(5):
        listings = [served.ask("GET", "/v1/keys", who="root") for _ in range(8)]
        rotation = served.ask("POST", "/v1/keys/carl/rotate", {}, headers={"x-api-key": secret})
        received, *listed = await asyncio.gather(rotation, *listings)
        assert {one.status_code for one in listed} == {200}
        assert received.status_code == 200, received.text
        secret = received.json()["key"]


async def begin(served: Tenants, caller: HttpConnection, client: str, key: str) -> bytes:
    """A streamed answer that has begun and does not go on."""
    steps = iter(range(3))  # the first word is out

    async def pace() -> None:
        if next(steps, None) is None:
            await served.hold.wait()

    served.play("Here it comes, slowly.", pace=pace)
    await caller.post(PATHS[client], body(client, "m", True), f"x-api-key: {key}")
    assert (await caller.head())[0] == 200
    return await caller.chunk()


async def rest(caller: HttpConnection) -> bytes:
    pieces = []
    while piece := await asyncio.wait_for(caller.chunk(), 30):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_open_stream_of_a_revoked_key_ends_with_an_error_in_its_dialect(served: Tenants, client: str) -> None:
    """fault: Z5, M7"""
    made = await make(served)
    async with HttpConnection(served.url) as caller:
        begun = await begin(served, caller, client, made["key"])
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        output = begun + await rest(caller)
    assert b"no longer valid" in output
    match client:
        case "openai_chat":
            assert b'"code":"invalid_api_key"' in output
            assert b'"finish_reason":"stop"' not in output
        case "openai_responses":
            assert b"event: response.failed" in output
        case "anthropic":
            assert b"event: error" in output
            assert b"authentication_error" in output
            assert b"message_stop" not in output
        case "ollama":
            assert json.loads(output.splitlines()[-1]).keys() == {"error"}


@pytest.mark.parametrize("change", ["rotate", "scopes", "models"])
async def test_an_open_stream_ends_when_its_key_could_not_ask_for_it_any_more(served: Tenants, change: str) -> None:
    """fault: M7"""
    made = await make(served, scopes=["chat", "tools"])
    async with HttpConnection(served.url) as caller:
        await begin(served, caller, "openai_chat", made["key"])
        if change == "rotate":
            await served.ask("POST", "/v1/keys/carl/rotate", {}, "root")
        else:
            given = {"scopes": ["tools"]} if change == "scopes" else {"models": ["other*"]}
            await served.ask("POST", "/v1/keys/carl", given, "root")
        assert b'"error"' in await rest(caller)


async def test_streams_of_others_go_on(served: Tenants) -> None:
    await make(served)
    async with HttpConnection(served.url) as caller:
        await begin(served, caller, "openai_chat", "ann-key")
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        served.hold.set()
        output = await rest(caller)
    assert b'"error"' not in output
    assert b"[DONE]" in output


async def test_a_whole_answer_that_is_waited_for_becomes_a_refusal(served: Tenants) -> None:
    """fault: M7"""
    made = await make(served)
    asked = asyncio.Event()

    async def slow(request: Any) -> str:
        asked.set()
        await served.hold.wait()
        return "Late."

    served.play(slow)
    async with HttpConnection(served.url) as caller:
        await caller.post(PATHS["anthropic"], body("anthropic", "m", False), f"x-api-key: {made['key']}")
        await asked.wait()
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        received = await asyncio.wait_for(caller.response(), 30)
    assert (received.status, received.json["error"]["type"]) == (401, "authentication_error")


async def test_an_open_websocket_of_a_revoked_key_gets_an_error_and_is_closed(served: Tenants) -> None:
    """fault: Z5, M7"""
    made = await make(served)
    served.play("Here it comes, slowly.", pace=served.hold.wait)
    url, headers = served.url.replace("http", "ws") + "/v1/responses", {"x-api-key": made["key"]}
    async with connect(url, additional_headers=headers, ping_interval=None, proxy=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi"}))
        received = [str(await socket.recv())]
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        while "no longer valid" not in received[-1]:
            received.append(str(await asyncio.wait_for(socket.recv(), 30)))
        await asyncio.wait_for(socket.wait_closed(), 30)
    assert socket.close_code == 1008
    with pytest.raises(InvalidStatus):
        await connect(url, additional_headers=headers, proxy=None)


async def test_a_stream_of_changes_over_mcp_ends_with_its_key(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served, scopes=["tools"])
    async with HttpConnection(served.url) as caller:
        accept = "accept: text/event-stream"
        caller.writer.write(
            f"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n{accept}\r\nx-api-key: {made['key']}\r\n\r\n".encode()
        )
        assert (await caller.head())[0] == 200
        await caller.chunk()
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        assert await rest(caller) == b""


async def test_a_tool_that_runs_over_mcp_is_stopped_with_its_key(tmp_path: Path) -> None:
    """fault: M7"""
    async with tenants(tmp_path, tools=ALLOWED) as served:
        made = await make(served, scopes=["tools"])

        async def wait(arguments: Any) -> str:
            await served.hold.wait()
            return "too late"

        served.oracle.give = wait
        async with HttpConnection(served.url) as caller:
            hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            message = {**hello, "params": {"name": "write", "arguments": {"text": "hi"}}}
            await caller.post("/mcp", message, f"x-api-key: {made['key']}", "accept: application/json")
            await served.oracle.began.wait()
            await served.ask("DELETE", "/v1/keys/carl", who="root")
            received = await asyncio.wait_for(caller.response(), 30)
        assert received.status == 401
        assert served.oracle.cancelled == 1


async def test_following_a_background_response_ends_when_the_key_is_revoked(served: Tenants) -> None:
    """fault: Z5"""
    made = await make(served)
    served.play("Here it comes, slowly.", pace=served.hold.wait)
    asked = {"model": "m", "input": "Go.", "background": True, "stream": True}
    async with HttpConnection(served.url) as caller:
        await caller.post("/v1/responses", asked, f"x-api-key: {made['key']}")
        assert (await caller.head())[0] == 200
        await caller.chunk()
        await served.ask("DELETE", "/v1/keys/carl", who="root")
        assert b"no longer valid" in await rest(caller)


async def test_the_use_of_a_key_is_recorded(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/t.db")
    async with tenants(tmp_path, storage=storage) as served:
        made, before = await make(served), int(time.time())
        assert made["last_used_at"] is None
        await use(served, made["key"])
    async with tenants(tmp_path, storage=storage) as served:
        shown = (await served.ask("GET", "/v1/keys/carl", who="root")).json()
        assert before <= shown["last_used_at"] <= time.time()
        assert (await use(served, made["key"])).status_code == 200, "it survives a restart"


async def test_what_one_server_revokes_is_dead_on_another(tmp_path: Path, storage_url: str) -> None:
    """fault: Z5, M7: they share nothing but the database."""
    storage = Secret(storage_url)
    async with tenants(tmp_path, storage=storage) as here, tenants(tmp_path, storage=storage) as there:
        made = await make(here)
        await eventually(there, made["key"], 200)
        async with HttpConnection(there.url) as caller:
            await begin(there, caller, "openai_chat", made["key"])
            await here.ask("DELETE", "/v1/keys/carl", who="root")
            assert b"no longer valid" in await rest(caller)
        assert (await use(there, made["key"])).status_code == 401


async def eventually(served: Tenants, key: str, status: int) -> None:
    async with asyncio.timeout(30):
        while (await use(served, key)).status_code != status:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)


async def test_a_key_that_leaves_the_configuration_is_dead_after_the_reload(tmp_path: Path) -> None:
    """fault: M7: the stream that it has open as well."""
    async with tenants(tmp_path) as served:
        config = tmp_path / "toolgate.yaml"
        keys = 'keys: [{name: root, key: "root-key", scopes: [chat, tools, admin]}]'
        config.write_text(
            f"server: {{port: 0}}\n{keys}\nmodels: [{{name: m, upstream: builtin, model: echo}}]\nstorage: 'sqlite://'\n"
        )
        async with HttpConnection(served.url) as caller:
            await begin(served, caller, "openai_chat", "ann-key")
            served.gate.reload(config)
            assert b"no longer valid" in await rest(caller)
        assert (await use(served, "ann-key")).status_code == 401
        assert (await use(served, "root-key")).status_code == 200


RUN: dict[str, Any] = {
    "model": "m",
    "input": "Go.",
    "background": True,
    "tool_execution": "auto",
    "use_server_tools": True,
}
ALLOWED = ServerToolSettings(approvals=ApprovalSettings(default="allow", open_world="allow"))


async def ended(served: Tenants, id: str, key: str) -> dict[str, Any]:
    """The background response, once it has ended."""
    while True:
        found: dict[str, Any] = (await use(served, key, f"/v1/responses/{id}")).json()
        if found["status"] not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", ["blocked_tools", "tools"])
async def test_a_right_that_is_lost_while_a_run_goes_on_is_lost_for_its_next_call(tmp_path: Path, change: str) -> None:
    """fault: M7: the policy is asked when a tool is run."""
    async with tenants(tmp_path, tools=ALLOWED) as served:
        made = await make(served)
        asked = asyncio.Event()

        async def later(request: Any) -> Any:
            asked.set()
            await served.hold.wait()
            return [call("write")]

        served.play([call("write")], later, "Well then.")
        began = (await served.ask("POST", "/v1/responses", RUN, headers={"x-api-key": made["key"]})).json()
        await asked.wait()
        await served.ask("POST", "/v1/keys/carl", {change: ["write" if change == "blocked_tools" else "read"]}, "root")
        served.hold.set()
        assert (await ended(served, began["id"], made["key"]))["status"] == "completed"
        assert len(served.oracle.runs) == 1


async def test_a_background_run_whose_key_is_revoked_runs_no_tool_and_asks_no_model_again(tmp_path: Path) -> None:
    """fault: Z5, M7"""
    storage = Secret(f"sqlite:///{tmp_path}/t.db")
    async with tenants(tmp_path, tools=ALLOWED, storage=storage) as served:
        made, asked = await make(served), asyncio.Event()

        async def later(request: Any) -> Any:
            asked.set()
            await served.hold.wait()
            return [call("write")]

        script = served.play(later, "This is never given.")
        began = (await served.ask("POST", "/v1/responses", RUN, headers={"x-api-key": made["key"]})).json()
        await asked.wait()
        await served.ask("DELETE", "/v1/keys/carl", who="root")

        async def over() -> dict[str, Any] | None:
            kept = await served.gate.services.responses.load("carl", began["id"])  # nobody else may read it any more
            return kept.body if kept is not None and kept.body["status"] == "cancelled" else None

        await soon(over)
        assert served.oracle.runs == []
        assert len(script.requests) == 1


def test_a_digest_in_the_database_is_a_sha256_and_nothing_else_of_the_key_is_there() -> None:
    from toolgate.api.keys import new_secret

    secret, digest, shown = new_secret()
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert shown == f"{secret[:6]}…{secret[-4:]}"
