"""The tools over HTTP: who sees what, what may be registered, and what survives a restart (spec: R3, R5, R9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving
from tests.stage import served
from tests.tools.execution.toolserver import ToolServer, tool_server
from tests.tools.fakes import many, tool
from tests.tools.test_registry import quickest
from tests.tools.test_schema_complexity import HOSTILE
from toolgate.api.registered_source_request import decode_registration
from toolgate.api.tools import ToolEndpoints
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import load
from toolgate.http.listener import listening
from toolgate.storage.database import Database
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.tools.sources.registered import RegisteredToolSource

HTTP: dict[str, Any] = {
    "type": "http",
    "name": "book_room",
    "description": "Books a room.",
    "url": "https://rooms.example/book",
    "headers": {"authorization": "Bearer canary-7311"},
    "inputSchema": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
    "tags": ["office"],
    "displayName": "Rooms",
    "annotations": {"readOnlyHint": False, "destructiveHint": False},
}
MCP = {"type": "mcp", "name": "docs", "url": "http://127.0.0.1:9/mcp", "headers": {"x-key": "canary-7311"}}


async def names(server: ToolServer, query: str = "", who: str = "root") -> list[str]:
    received = await server.request("GET", f"/v1/tools{query}", who=who)
    assert received.status == 200, received.body
    assert received.json["object"] == "list"
    return [tool["name"] for tool in received.json["data"]]


class TestListing:
    async def test_a_tool_is_listed_in_the_form_of_vs_code(self) -> None:
        async with tool_server() as server:
            received = await server.request("GET", "/v1/tools?name=get_time")
            assert received.json == {
                "object": "list",
                "data": [
                    {
                        "name": "get_time",
                        "description": "Does get_time.",
                        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
                        "tags": ["time"],
                        "source": "python",
                        "displayName": "Clock",
                        "referenceName": "clock",
                        "when": "online",
                        "annotations": {
                            "readOnlyHint": False,
                            "destructiveHint": True,
                            "idempotentHint": False,
                            "openWorldHint": True,
                        },
                    }
                ],
                "sources": ["python", "mcp/wiki", "api"],
                "troubles": [],
                "quarantined": [],
            }
            shown = await server.request("GET", "/v1/tools/get_time")
            assert shown.json == {"object": "tool", **received.json["data"][0]}

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", ["get_page", "get_time", "put_page"]),
            ("?tags=time,slow", ["get_time", "put_page"]),
            ("?tags=web&name=get_*", ["get_page"]),
            ("?tags=web&tags=time", ["get_page", "get_time", "put_page"]),
            ("?name=%2A_page", ["get_page", "put_page"]),
            ("?name=secret", []),
            ("?tags=", ["get_page", "get_time", "put_page"]),
            ("?other=1", ["get_page", "get_time", "put_page"]),
            ("?name=get_time" + "&a=b" * 1_000, ["get_time"]),
        ],
    )
    async def test_tools_are_filtered_by_tags_and_name(self, query: str, expected: list[str]) -> None:
        async with tool_server() as server:
            assert await names(server, query) == expected

    async def test_a_pattern_of_a_name_has_bounded_length(self) -> None:
        async with tool_server() as server:
            refused = await server.request("GET", f"/v1/tools?name={'*a' * 129}")
            assert (refused.status, refused.json["error"]["param"]) == (400, "name")

    async def test_a_key_sees_the_tools_it_may_use_and_no_problems_of_others(self) -> None:
        """field: E35"""
        async with tool_server() as server:
            server.configured.bring(*server.configured.tools, tool("bad", input_schema={"type": "array"}))
            assert await names(server, who="few") == ["get_time"]
            assert {"sources", "troubles"}.isdisjoint((await server.request("GET", "/v1/tools", who="few")).json)
            assert (await server.request("GET", "/v1/tools/get_page", who="few")).status == 404
            [tool_problem] = (await server.request("GET", "/v1/tools", who="ann")).json["troubles"]
            assert (tool_problem["source"], tool_problem["tool"]) == ("python", "bad")

    @pytest.mark.parametrize("path", ["/v1/tools/secret", "/v1/tools/nobody", "/v1/tools/get_time/accept/x"])
    async def test_a_private_tool_looks_like_a_missing_one(self, path: str) -> None:
        async with tool_server() as server:
            received = await server.request("GET", path)
            assert received.status == 404
            assert received.json["error"]["code"] == "tool_not_found"

    async def test_a_failing_source_is_named_beside_the_tools_of_the_others(self) -> None:
        """field: E32"""
        async with tool_server() as server:
            server.configured.bring(*server.configured.tools, problem="Half of it is missing.")
            received = (await server.request("GET", "/v1/tools")).json
            assert len(received["data"]) == 3
            assert received["troubles"] == [{"source": "python", "message": "Half of it is missing.", "tool": None}]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/tools"), ("DELETE", "/v1/tools/get_time"), ("POST", "/v1/tools/x/accept")]
)
async def test_only_admins_may_change_tools(method: str, path: str) -> None:
    async with tool_server() as server:
        for who, status in (("ann", 403), ("talker", 403), ("nobody", 401)):
            assert (await server.request(method, path, HTTP, who=who)).status == status
        assert (await server.request("GET", "/v1/tools", who="talker")).status == 403


@pytest.mark.parametrize("path", ["/v1/tools/get_time", "/v1/tools/get_time/invoke", "/v1/tools/get_time/run"])
async def test_there_is_no_path_that_runs_a_tool(path: str) -> None:
    """spec: R3"""
    async with tool_server() as server:
        assert (await server.request("POST", path, {})).status in (404, 405)
        assert (await server.request("PUT", path, {})).status in (404, 405)


class TestRegistering:
    async def test_a_callback_becomes_a_tool_that_survives_a_restart_until_it_is_deleted(self, tmp_path: Path) -> None:
        async with tool_server(path=tmp_path / "t.db") as server:
            received = await server.request("POST", "/v1/tools", HTTP)
            assert received.status == 201
            assert received.json["object"] == "tool"
            assert (received.json["name"], received.json["source"], received.json["displayName"]) == (
                "book_room",
                "api",
                "Rooms",
            )
            assert received.json["annotations"]["destructiveHint"] is False
            assert "book_room" in await names(server)
        async with tool_server(path=tmp_path / "t.db") as server:
            shown = (await server.request("GET", "/v1/tools/book_room")).json
            assert shown == received.json
            assert (await server.request("DELETE", "/v1/tools/book_room")).json["deleted"] is True
            assert "book_room" not in await names(server)
            assert (await server.request("DELETE", "/v1/tools/book_room")).status == 404
        async with tool_server(path=tmp_path / "t.db") as server:
            assert "book_room" not in await names(server)

    async def test_an_mcp_server_is_registered_by_its_url(self) -> None:
        async with tool_server() as server:
            received = await server.request("POST", "/v1/tools", MCP)
            assert received.status == 201
            assert received.json == {
                "object": "tool_source",
                "name": "docs",
                "source": "mcp/docs",
                "tools": ["docs_ask"],
                "trouble": None,
            }
            assert await names(server, "?name=docs_*") == ["docs_ask"]
            assert (await server.request("DELETE", "/v1/tools/docs_ask")).status == 409
            assert (await server.request("DELETE", "/v1/tools/docs")).status == 200
            assert await names(server, "?name=docs_*") == []

    async def test_secrets_of_a_registration_are_never_returned(self) -> None:
        async with tool_server() as server:
            for body in (HTTP, MCP):
                assert b"canary" not in (await server.request("POST", "/v1/tools", body)).body
                assert b"canary" not in (await server.request("POST", "/v1/tools", body)).body
            for path in ("/v1/tools", "/v1/tools/book_room"):
                assert b"canary" not in (await server.request("GET", path)).body

    @pytest.mark.parametrize("field", ["command", "args", "env", "cwd"])
    @pytest.mark.parametrize("base", [HTTP, MCP])
    async def test_a_command_is_refused(self, field: str, base: dict[str, Any]) -> None:
        async with tool_server() as server:
            received = await server.request("POST", "/v1/tools", {**base, field: ["sh", "-c", "true"]})
            assert (received.status, received.json["error"]["code"]) == (403, "command_not_allowed")
            assert await names(server) == ["get_page", "get_time", "put_page"]

    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"type": None}, "type"),
            ({"type": "stdio"}, "type"),
            ({"name": None}, "name"),
            ({"name": "x" * 65}, "name"),
            ({"name": "a b"}, "name"),
            ({"name": 7}, "name"),
            ({"description": ""}, "description"),
            ({"description": "x" * 20_000}, "description"),
            ({"url": None}, "url"),
            ({"url": "ftp://a/b"}, "url"),
            ({"url": "file:///etc/passwd"}, "url"),
            ({"url": "https://"}, "url"),
            ({"url": "https://a:99999/"}, "url"),
            ({"url": "https://a/\n"}, "url"),
            ({"url": "https://me:pass@a/"}, "url"),
            ({"url": "http://[::1/"}, "url"),
            ({"url": "https://unreachable.example/"}, "url"),
            ({"headers": {"a b": "c"}}, "headers.a b"),
            ({"headers": {"host": "c"}}, "headers.host"),
            ({"headers": {"x": "c\r\nd: e"}}, "headers.x"),
            ({"headers": {"x": 1}}, "headers.x"),
            ({"method": "TRACE"}, "method"),
            ({"inputSchema": {"type": "array"}}, "inputSchema"),
            ({"inputSchema": {"type": "object", "properties": 3}}, "inputSchema"),
            ({"inputSchema": []}, "inputSchema"),
            ({"outputSchema": {"type": 3}}, "outputSchema"),
            ({"tags": "a"}, "tags"),
            ({"tags": ["a,b"]}, "tags[0]"),
            ({"tags": ["a"] * 33}, "tags"),
            ({"referenceName": "#x"}, "referenceName"),
            ({"when": "a ="}, "when"),
            ({"annotations": {"readOnly": True}}, "annotations.readOnly"),
            ({"annotations": {"readOnlyHint": "yes"}}, "annotations.readOnlyHint"),
            ({"approval": "always"}, "approval"),
            ({"timeout": 0}, "timeout"),
            ({"colour": "red"}, "colour"),
        ],
    )
    async def test_what_cannot_be_registered_is_refused_by_its_field(self, change: dict[str, Any], param: str) -> None:
        """fault: L1"""
        async with tool_server() as server:
            received = await server.request("POST", "/v1/tools", HTTP | change)
            assert (received.status, received.json["error"]["param"]) == (400, param), received.body
            assert await names(server) == ["get_page", "get_time", "put_page"]

    @pytest.mark.parametrize("name", HOSTILE)
    async def test_a_schema_that_would_stop_the_server_is_refused(self, name: str) -> None:
        """fault: J3"""
        schema, why = HOSTILE[name]
        async with tool_server() as server:
            received = await server.request("POST", "/v1/tools", HTTP | {"inputSchema": schema})
            assert (received.status, received.json["error"]["param"]) == (400, "inputSchema")
            assert why in received.json["error"]["message"]

    async def test_a_misspelt_field_gets_a_suggestion(self) -> None:
        async with tool_server() as server:
            received = await server.request("POST", "/v1/tools", {**HTTP, "input_schema": {}})
            assert "did you mean inputSchema?" in received.json["error"]["message"]

    async def test_a_taken_name_is_a_conflict(self) -> None:
        """fault: T7"""
        async with tool_server() as server:
            assert (await server.request("POST", "/v1/tools", HTTP)).status == 201
            for body in (HTTP, HTTP | {"name": "get_time"}, HTTP | {"name": "secret"}, MCP | {"name": "wiki"}):
                received = await server.request("POST", "/v1/tools", body)
                assert (received.status, received.json["error"]["param"]) == (409, "name")
            assert (await server.request("DELETE", "/v1/tools/get_time")).status == 409

    async def test_a_registration_that_cannot_be_restored_is_reported_and_can_be_deleted(self, tmp_path: Path) -> None:
        """field: E32"""
        database = Database(tmp_path / "t.db")
        store = RegisteredSourceStore(database)
        await store.save("old", b'{"type":"http","name":"old","url":"http://unreachable.example/"}')
        await store.save("broken", b"{")
        await store.save("unwilling", b'{"type":"http","name":"unwilling","url":"http://unwilling.example/"}')
        await database.aclose()
        async with tool_server(path=tmp_path / "t.db") as server:
            received = (await server.request("GET", "/v1/tools")).json
            assert len(received["data"]) == 3
            [tool_problem] = received["troubles"]
            assert "'old' could not be restored" in tool_problem["message"]
            assert "'broken' could not be restored" in tool_problem["message"]
            assert "'unwilling' could not be restored: no such device" in tool_problem["message"]
            assert (await server.request("POST", "/v1/tools", HTTP | {"name": "old"})).status == 409
            for name in ("old", "broken", "unwilling"):
                assert (await server.request("DELETE", f"/v1/tools/{name}")).status == 200
            assert (await server.request("GET", "/v1/tools")).json["troubles"] == []

    async def test_a_registration_that_cannot_be_opened_is_not_stored(self, tmp_path: Path) -> None:
        async with tool_server(path=tmp_path / "t.db") as server:
            received = await server.request("POST", "/v1/tools", HTTP | {"url": "http://unwilling.example/"})
            assert received.status == 500
            assert (await server.request("DELETE", "/v1/tools/book_room")).status == 404
        async with tool_server(path=tmp_path / "t.db") as server:
            assert (await server.request("GET", "/v1/tools")).json["troubles"] == []


class TestAccepting:
    async def test_a_changed_tool_waits_until_the_definition_that_was_seen_is_accepted(self) -> None:
        """fault: T7"""
        async with tool_server() as server:
            await server.request("POST", "/v1/tools", MCP)
            [waiting] = (await server.request("GET", "/v1/tools")).json["quarantined"]
            assert waiting == {
                "name": "docs_odd",
                "source": "api",
                "digest": "d1",
                "accepted": {"description": "a"},
                "offered": {"description": "b"},
            }
            stale = await server.request("POST", "/v1/tools/docs_odd/accept", {"digest": "d0"})
            assert stale.status == 409
            received = await server.request("POST", "/v1/tools/docs_odd/accept", {"digest": waiting["digest"]})
            assert (received.status, received.json["accepted"]) == (200, True)
            assert "docs_odd" in await names(server)
            again = await server.request("POST", "/v1/tools/docs_odd/accept")
            assert (again.status, again.json["error"]["code"]) == (404, "tool_not_found")

    async def test_accepting_needs_no_body(self) -> None:
        async with tool_server() as server:
            await server.request("POST", "/v1/tools", MCP)
            assert (await server.request("POST", "/v1/tools/docs_odd/accept")).status == 200


async def test_five_thousand_tools_are_encoded_in_ten_milliseconds() -> None:
    """spec: N6"""
    async with tool_server(*many(5000)) as server:
        assert len(await names(server)) == 5000
        listing = ToolEndpoints(server.registry, RegisteredToolSource(RegisteredSourceStore(Database(None)), _none))
        specs = [tool.spec for tool in server.registry.tools()]
        assert quickest(lambda: [listing._encode(spec) for spec in specs]) < 0.010


def _none(registration: Any) -> Any:
    raise AssertionError


def test_a_registration_has_all_fields_of_a_tool() -> None:
    read = decode_registration(
        {**HTTP, "private": True, "approval": "ask", "timeout": 2, "cacheSeconds": 5, "when": "a", "icon": "x"}
    )
    assert (read.private, read.approval, read.timeout, read.cache_seconds, read.when) == (True, "ask", 2, 5, "a")
    assert read.annotations.destructive is False


REGISTERED = """
server: {port: 0}
storage: 'sqlite://'
log: {level: error}
models: [{name: echo, upstream: builtin}]
tools:
  reach: [127.0.0.1]
  mcp: {git_hub: {url: 'http://127.0.0.1:9/mcp'}}
  approvals: {hold_seconds: 0.01, trusted: %s, rules: [{stance: allow, tools: ["git_hub_*"]}]}
"""


@asynccontextmanager
async def with_registered_server(folder: Path, name: str, trusted: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway at which an MCP server is registered whose tool claims to only read."""
    path = folder / "toolgate.yaml"
    path.write_text(REGISTERED % trusted)
    hints = {"readOnlyHint": True, "openWorldHint": False}
    results: dict[str, dict[str, Any]] = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "read", "inputSchema": {"type": "object"}, "annotations": hints}]},
        "tools/call": {"content": [{"type": "text", "text": "it ran"}]},
    }

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        result = {"resultType": "complete", **results[asked.message["method"]]}
        return ScriptedResponse(200, {"jsonrpc": "2.0", "id": asked.message["id"], "result": result})

    async with (
        serving(script) as server,
        listening(Toolgate(load(path, {}))) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        made = await client.post("/v1/tools", json={"type": "mcp", "name": name, "url": server.url})
        assert made.status_code == 201
        yield client


async def listed(client: httpx.AsyncClient, field: str, name: str) -> None:
    """Wait until a tool is in this field of the list of tools."""
    async with asyncio.timeout(60):
        while name not in [one["name"] for one in (await client.get("/v1/tools")).json()[field]]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def called(client: httpx.AsyncClient, name: str) -> str:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    accept = {"accept": "application/json, text/event-stream"}
    return (await client.post("/mcp", json=message, headers=accept)).text


@pytest.mark.parametrize(
    ("trusted", "shown"),
    [('["mcp/*", "http/*"]', "waits for approval"), ("[api]", "it ran"), ("[]", "waits for approval")],
)
async def test_what_a_registered_mcp_server_says_of_its_tools_counts_only_if_registrations_are_trusted(
    tmp_path: Path, trusted: str, shown: str
) -> None:
    async with with_registered_server(tmp_path, "plain", trusted) as client:
        await listed(client, "data", "plain_read")
        assert shown in await called(client, "plain_read")


async def test_a_registered_mcp_server_whose_name_begins_as_a_configured_one_waits_for_a_person(tmp_path: Path) -> None:
    async with with_registered_server(tmp_path, "git_hub_x", "[api]") as client:
        await listed(client, "quarantined", "read")
        assert "Unknown tool" in await called(client, "git_hub_x_read")


def test_a_tool_is_not_registered_under_a_name_that_begins_as_those_of_a_configured_source(tmp_path: Path) -> None:
    """A rule that allows `git_hub_*` means the tools of the server git_hub."""
    path = tmp_path / "toolgate.yaml"
    path.write_text(
        "server: {port: 0}\nstorage: 'sqlite://'\nlog: {level: error}\nmodels: [{name: echo, upstream: builtin}]\n"
        "tools: {mcp: {git_hub: {url: 'http://127.0.0.1:9/mcp'}}}\n"
    )
    tool = {"type": "http", "url": "https://tools.example.org/x", "description": "Searches."}
    with served(Toolgate(load(path, {}))) as url, httpx.Client(base_url=url) as client:
        taken, other = (client.post("/v1/tools", json={**tool, "name": name}) for name in ("git_hub_find", "git_find"))
        assert (taken.status_code, other.status_code) == (409, 201)
        assert "mcp/git_hub" in taken.json()["error"]["message"]
