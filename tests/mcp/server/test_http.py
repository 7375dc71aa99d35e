"""The MCP endpoint byte by byte: statuses, headers, sessions, and messages that no SDK would send (spec: R8)."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from tests.api.http_client import HttpConnection, HttpResponse, ask
from tests.mcp.server.fake_catalog import BlockingTool, FakeToolCatalog, key, serving, tool
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.mcp.server.sessions import McpSessions

BOTH = "accept: application/json, text/event-stream"
STATELESS = "mcp-protocol-version: 2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def request(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def post(url: str, payload: Any, *headers: str) -> HttpResponse:
    return await ask(url, "/mcp", payload, *([BOTH] if not any("accept" in one for one in headers) else []), *headers)


async def introduced(url: str, *headers: str) -> str:
    """The header line of a fresh session."""
    received = await post(url, request("initialize", **HELLO), *headers)
    return f"mcp-session-id: {received.headers['mcp-session-id']}"


def modern(method: str, *headers: str, **params: Any) -> tuple[Any, ...]:
    """A request of 2026-07-28 and its headers."""
    named = [f"mcp-name: {params['name']}"] if "name" in params else []
    return request(method, _meta=META, **params), STATELESS, f"mcp-method: {method}", *named, *headers


def code(received: HttpResponse) -> tuple[int, int]:
    return received.status, received.json["error"]["code"]


@pytest.mark.parametrize(
    ("payload", "status", "expected", "id"),
    [
        (b"{", 400, -32700, None),
        (b"\xff\xfe", 400, -32700, None),
        (b"[" * 100_000, 400, -32700, None),
        (b'{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}', 400, -32700, None),
        (b"", 400, -32700, None),
        (b"7", 400, -32600, None),
        (b'"ping"', 400, -32600, None),
        (b"null", 400, -32600, None),
        ({"id": 1, "method": "ping"}, 400, -32600, 1),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": "a", "method": "ping", "params": [1]}, 400, -32602, "a"),
        (request("nothing/here", "x"), 200, -32601, "x"),
        (request("tools/call"), 200, -32602, 1),
        (request("tools/call", name=7), 200, -32602, 1),
        (request("tools/call", name="one", arguments=[1]), 200, -32602, 1),
        (request("tools/list", cursor="!!"), 200, -32602, 1),
        (request("tools/list", cursor="WzFd"), 200, -32602, 1),
        (request("tools/list", cursor=5), 200, -32602, 1),
        (request("logging/setLevel", level="loud"), 200, -32602, 1),
        (request("initialize", protocolVersion=7), 200, -32602, 1),
    ],
)
async def test_a_message_that_cannot_be_served_is_reported_why(
    payload: Any, status: int, expected: int, id: Any
) -> None:
    async with serving(FakeToolCatalog(tool("one"))) as url:
        received = await post(url, payload, "mcp-protocol-version: 2025-11-25")
    assert code(received) == (status, expected)
    assert received.json["id"] == id


@pytest.mark.parametrize("asked", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_initialize_agrees_to_every_revision_that_has_it(asked: str) -> None:
    async with serving(FakeToolCatalog()) as url:
        received = await post(url, request("initialize", **{**HELLO, "protocolVersion": asked}))
    assert received.json["result"]["protocolVersion"] == asked


async def test_initialize_offers_the_newest_of_them_to_a_client_of_another_revision() -> None:
    async with serving(FakeToolCatalog()) as url:
        received = await post(url, request("initialize", **{**HELLO, "protocolVersion": "2031-01-01"}))
    assert received.json["result"]["protocolVersion"] == "2025-11-25"


async def test_a_message_that_wants_no_answer_gets_none() -> None:
    async with serving(FakeToolCatalog()) as url:
        for message in (
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
        ):
            received = await post(url, message)
            assert (received.status, received.body) == (202, b"")


async def test_the_oldest_revisions_may_send_batches_and_the_others_may_not() -> None:
    batch = [request("ping", 1), {"jsonrpc": "2.0", "method": "notifications/initialized"}, request("nothing", "b")]
    async with serving(FakeToolCatalog()) as url:
        answered = await post(url, batch, "mcp-protocol-version: 2025-03-26")
        unsaid = await post(url, batch)
        newer = await post(url, batch, "mcp-protocol-version: 2025-06-18")
        newest = await post(url, batch, STATELESS)
        session = await introduced(url)
        in_session = await post(url, batch, session)
        emitted = await post(url, [batch[1]], "mcp-protocol-version: 2025-03-26")
        empty = await post(url, [], "mcp-protocol-version: 2025-03-26")
    assert answered.status == unsaid.status == 200
    assert {one["id"]: "result" in one for one in answered.json} == {1: True, "b": False}
    assert code(newer) == code(in_session) == code(empty) == (400, -32600)
    assert code(newest) == (400, -32600)
    assert (emitted.status, emitted.body) == (202, b"")


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"])
async def test_the_newer_era_answers_404_to_methods_it_does_not_know(method: str) -> None:
    async with serving(FakeToolCatalog()) as url:
        assert code(await post(url, *modern(method))) == (404, -32601)


async def test_stateless_results_have_the_server_info_and_a_cache_lifetime() -> None:
    async with serving(FakeToolCatalog(tool("one"))) as url:
        found = (await post(url, *modern("server/discover"))).json["result"]
        listed = (await post(url, *modern("tools/list"))).json["result"]
        called = (await post(url, *modern("tools/call", name="one"))).json["result"]
    assert found["supportedVersions"] == ["2026-07-28"]
    assert found["capabilities"]["tools"] == {"listChanged": True}
    assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
    for result in (found, listed, called):
        assert result["resultType"] == "complete"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "toolgate"


@pytest.mark.parametrize("missing", META)
async def test_a_stateless_request_must_have_its_revision(missing: str) -> None:
    payload = request("tools/list", _meta={name: value for name, value in META.items() if name != missing})
    async with serving(FakeToolCatalog()) as url:
        assert code(await post(url, payload, STATELESS, "mcp-method: tools/list")) == (400, -32602)


async def test_an_unsupported_revision_is_refused_with_the_supported_ones() -> None:
    version = "io.modelcontextprotocol/protocolVersion"
    payload = request("tools/list", _meta={**META, version: "2031-01-01"})
    async with serving(FakeToolCatalog()) as url:
        received = await post(url, payload, "mcp-protocol-version: 2031-01-01", "mcp-method: tools/list")
        older = await post(url, request("tools/list"), "mcp-protocol-version: 2031-01-01")
    assert code(received) == (400, -32022)
    assert received.json["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}
    assert older.status == 400


@pytest.mark.parametrize(
    "headers",
    [
        ("mcp-method: tools/call", "mcp-name: place"),
        (STATELESS, "mcp-name: place"),
        (STATELESS, "mcp-method: tools/call"),
        ("mcp-protocol-version: 2025-11-25", "mcp-method: tools/call", "mcp-name: place"),
        (STATELESS, "mcp-method: TOOLS/CALL", "mcp-name: place"),
        (STATELESS, "mcp-method: tools/list", "mcp-name: place"),
        (STATELESS, "mcp-method: tools/call", "mcp-name: other"),
        (STATELESS, "mcp-method: tools/call", "mcp-name: place", "mcp-name: place"),
        (STATELESS, "mcp-method: tools/call", "mcp-name: =?base64?cGxhY2U?="),
    ],
)
async def test_headers_that_differ_from_the_body_are_refused(headers: tuple[str, ...]) -> None:
    catalog = FakeToolCatalog(tool("place"))
    async with serving(catalog) as url:
        received = await post(url, request("tools/call", name="place", _meta=META), *headers)
    assert code(received) == (400, -32020)
    assert catalog.calls == []


class LateToolCatalog(FakeToolCatalog):
    """Has its tools once its sources have settled."""

    async def settled(self) -> None:
        self.all["place"] = tool("place", input_schema=PLACE)


async def test_a_stateless_call_waits_for_a_source_that_is_still_connecting() -> None:
    catalog = LateToolCatalog()
    async with serving(catalog) as url:
        received = await post(
            url, *modern("tools/call", "mcp-param-city: Bonn", name="place", arguments={"city": "Bonn"})
        )
        assert received.json["result"]["isError"] is False
        assert code(await post(url, *modern("tools/call", name="place", arguments={"city": "Bonn"}))) == (400, -32020)
        assert code(await post(url, *modern("tools/call", name="other"))) == (400, -32602)
    assert len(catalog.calls) == 1


PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "x-mcp-header": "City"},
        "deep": {"type": "object", "properties": {"days": {"type": "integer", "x-mcp-header": "Days"}}},
        "sure": {"type": "boolean", "x-mcp-header": "Sure"},
    },
}


@pytest.mark.parametrize(
    ("arguments", "headers", "good"),
    [
        ({}, (), True),
        ({"city": None}, (), True),
        ({"city": "Bonn"}, ("mcp-param-city: Bonn",), True),
        ({"city": "Bonn"}, ("MCP-Param-CITY:   Bonn ",), True),
        ({"city": "Köln"}, ("mcp-param-city: =?base64?S8O2bG4=?=",), True),
        ({"city": "Köln"}, ("mcp-param-city: =?base64?S8O2bG4?=",), False),
        ({"city": "Köln"}, ("mcp-param-city: =?base64?S8O2bG5=?=",), False),
        ({"city": "Köln"}, ("mcp-param-city: =?base64?!!?=",), False),
        ({"city": "Bonn"}, (), False),
        ({"city": "Bonn"}, ("mcp-param-city: Köln",), False),
        ({"city": "Bonn"}, ("mcp-param-city: Bonn", "mcp-param-city: Bonn"), False),
        ({}, ("mcp-param-city: Bonn",), False),
        ({"deep": {"days": 3}}, ("mcp-param-days: 3",), True),
        ({"deep": {"days": 3}}, ("mcp-param-days: 3.0",), True),
        ({"deep": {"days": 3}}, ("mcp-param-days: 4",), False),
        ({"deep": {"days": 3}}, (), False),
        ({"sure": True}, ("mcp-param-sure: true",), True),
        ({"sure": True}, ("mcp-param-sure: True",), False),
        ({}, ("mcp-param-unknown: what",), True),
    ],
)
async def test_arguments_that_are_mirrored_in_headers_must_agree(
    arguments: dict[str, Any], headers: tuple[str, ...], good: bool
) -> None:
    catalog = FakeToolCatalog(tool("place", input_schema=PLACE))
    async with serving(catalog) as url:
        received = await post(url, *modern("tools/call", *headers, name="place", arguments=arguments))
    if good:
        assert received.status == 200
        assert [call[2] for call in catalog.calls] == [arguments]
    else:
        assert code(received) == (400, -32020)
        assert catalog.calls == []


async def test_without_a_good_key_nothing_is_answered() -> None:
    async with serving(FakeToolCatalog(tool("one")), key("me"), key("chatter", "chat")) as url:
        nobody = await post(url, request("tools/list"))
        wrong = await post(url, request("tools/list"), "authorization: Bearer nonsense")
        scoped = await post(url, request("tools/list"), "authorization: Bearer key-of-chatter")
        good = await post(url, request("tools/list"), "authorization: Bearer key-of-me")
    assert nobody.status == wrong.status == 401
    assert nobody.headers["www-authenticate"] == "Bearer"
    assert scoped.status == 403
    assert "scope tools" in scoped.json["error"]["message"]
    assert good.status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("host: evil.example", "origin: http://evil.example"), 421),
        (("origin: http://evil.example",), 403),
        (("origin: null",), 403),
        (("origin: http://localhost:1234",), 200),
    ],
)
async def test_a_page_from_elsewhere_cannot_reach_tools_on_loopback(headers: tuple[str, ...], status: int) -> None:
    """spec: R8, DNS rebinding."""
    async with serving(FakeToolCatalog(tool("one"))) as url:
        port = url.rpartition(":")[2]
        if not headers[0].startswith("host"):
            headers = (f"host: 127.0.0.1:{port}", *headers)
        async with HttpConnection(url) as caller:
            data = msgspec.json.encode(request("tools/list"))
            lines = [
                "POST /mcp HTTP/1.1",
                *headers,
                BOTH,
                "content-type: application/json",
                f"content-length: {len(data)}",
            ]
            caller.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            received = await caller.response()
    assert received.status == status
    assert received.json["jsonrpc"] == "2.0"


async def test_an_origin_that_is_not_configured_is_refused_even_with_a_valid_key() -> None:
    mine = "authorization: Bearer key-of-me"
    async with serving(FakeToolCatalog(), key("me"), origins=("https://app.example",)) as url:
        foreign = await post(url, request("ping"), mine, "origin: https://evil.example")
        named = await post(url, request("ping"), mine, "origin: https://app.example")
        own = await post(url, request("ping"), mine, f"origin: {url}")
    assert (foreign.status, named.status, own.status) == (403, 200, 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("content-type: text/plain",), 415),
        (("accept: text/html",), 406),
        (("accept: application/json",), 200),
        (("accept: */*",), 200),
        (("accept: text/event-stream",), 200),
        (("accept: Application/JSON;q=1, TEXT/event-stream",), 200),
    ],
)
async def test_what_a_client_sends_and_takes_is_checked(headers: tuple[str, ...], status: int) -> None:
    async with serving(FakeToolCatalog()) as url:
        assert (await post(url, request("ping"), *headers)).status == status


async def test_a_client_that_takes_no_streams_is_answered_in_one_piece() -> None:
    waiting = BlockingTool()
    async with (
        serving(FakeToolCatalog(tool("waits", waiting)), pace=StreamKeepaliveTimings(0.01, 0.01)) as url,
        HttpConnection(url) as caller,
    ):
        await caller.post("/mcp", request("tools/call", name="waits"), "accept: application/json")
        await waiting.begun.wait()
        waiting.release.set()
        received = await caller.response()
        listening = await post(url, *modern("subscriptions/listen", notifications={}), "accept: application/json")
    assert received.headers["content-type"] == "application/json"
    assert received.json["result"]["content"][0]["text"] == "released"
    assert listening.status == 406


async def test_a_session_belongs_to_the_caller_that_opened_it() -> None:
    me, you = "authorization: Bearer key-of-me", "authorization: Bearer key-of-you"
    async with serving(FakeToolCatalog(), key("me"), key("you")) as url, httpx2.AsyncClient() as http:
        session = await introduced(url, me)
        mine = await post(url, request("ping"), me, session)
        yours = await post(url, request("ping"), you, session)
        headers = dict(line.split(": ", 1) for line in (you, session))
        listened = await http.get(f"{url}/mcp", headers={**headers, "accept": "text/event-stream"})
        ended = await http.delete(f"{url}/mcp", headers=headers)
        again = await post(url, request("ping"), me, session)
    assert mine.status == again.status == 200
    assert (yours.status, listened.status_code, ended.status_code) == (404, 404, 404)


async def test_a_session_that_was_ended_is_gone() -> None:
    async with serving(FakeToolCatalog()) as url, httpx2.AsyncClient() as http:
        session = await introduced(url)
        headers = dict([session.split(": ", 1)])
        assert (await http.delete(f"{url}/mcp", headers=headers)).status_code == 204
        assert (await http.delete(f"{url}/mcp", headers=headers)).status_code == 404
        assert (await http.delete(f"{url}/mcp")).status_code == 400
        assert (await post(url, request("ping"), session)).status == 404


async def test_ending_a_session_ends_what_it_waits_for() -> None:
    waiting = BlockingTool()
    async with (
        serving(FakeToolCatalog(tool("waits", waiting))) as url,
        httpx2.AsyncClient() as http,
        HttpConnection(url) as caller,
    ):
        session = await introduced(url)
        headers = dict([session.split(": ", 1)])
        await caller.post("/mcp", request("tools/call", name="waits"), BOTH, session)
        await waiting.begun.wait()
        async with http.stream("GET", f"{url}/mcp", headers={**headers, "accept": "text/event-stream"}) as stream:
            await http.delete(f"{url}/mcp", headers=headers)
            assert await stream.aread() == b": ping\n"
        received = await caller.response()
        assert (received.status, received.body) == (200, b"")
        assert waiting.cancelled.is_set()


async def test_a_call_is_cancelled_by_its_own_session_and_by_no_other() -> None:
    waiting = BlockingTool()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    async with serving(FakeToolCatalog(tool("waits", waiting))) as url, HttpConnection(url) as caller:
        mine, other = await introduced(url), await introduced(url)
        await caller.post("/mcp", request("tools/call", 7, name="waits"), BOTH, mine)
        await waiting.begun.wait()
        twin = await post(url, request("ping", 7), mine)
        for session in ([other], []):
            assert (await post(url, cancelled, *session)).status == 202
        assert not waiting.cancelled.is_set()
        assert (await post(url, cancelled, mine)).status == 202
        assert (await caller.response()).body == b""
    assert waiting.cancelled.is_set()
    assert code(twin) == (200, -32600)


async def test_true_is_no_id_of_a_call_to_cancel() -> None:
    waiting = BlockingTool()
    async with serving(FakeToolCatalog(tool("waits", waiting))) as url, HttpConnection(url) as caller:
        mine = await introduced(url)
        await caller.post("/mcp", request("tools/call", 1, name="waits"), BOTH, mine)
        await waiting.begun.wait()
        for id in (True, 1.0):
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
            assert (await post(url, cancelled, mine)).status == 202
            assert not waiting.cancelled.is_set()


async def test_a_client_that_hangs_up_cancels_its_call() -> None:
    for headers in ((BOTH,), modern("tools/call", BOTH, name="waits")[1:]):
        waiting = BlockingTool()
        payload = request("tools/call", name="waits", **({"_meta": META} if len(headers) > 1 else {}))
        async with serving(FakeToolCatalog(tool("waits", waiting))) as url:
            async with HttpConnection(url) as caller:
                await caller.post("/mcp", payload, *headers)
                await waiting.begun.wait()
            await asyncio.wait_for(waiting.cancelled.wait(), 30)


async def test_a_stream_is_kept_alive_by_comments_while_a_tool_runs() -> None:
    waiting = BlockingTool()
    async with (
        serving(FakeToolCatalog(tool("waits", waiting)), pace=StreamKeepaliveTimings(0.01, 0.01)) as url,
        HttpConnection(url) as caller,
    ):
        await caller.post("/mcp", request("tools/call", name="waits"), BOTH)
        status, headers = await caller.head()
        assert [await caller.chunk() for _ in range(3)] == [b": ping\n"] * 3
        waiting.release.set()
        while (piece := await caller.chunk()) == b": ping\n":
            pass
        assert piece.startswith(b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result"')
        assert await caller.chunk() == b""
    assert (status, headers["content-type"]) == (200, "text/event-stream")


async def test_a_session_listens_on_one_stream_only() -> None:
    async with serving(FakeToolCatalog()) as url, httpx2.AsyncClient() as http:
        headers = dict([(await introduced(url)).split(": ", 1)]) | {"accept": "text/event-stream"}
        async with http.stream("GET", f"{url}/mcp", headers=headers) as stream:
            assert stream.status_code == 200
            assert (await http.get(f"{url}/mcp", headers=headers)).status_code == 409


async def test_the_newer_era_takes_post_alone() -> None:
    headers = {"mcp-protocol-version": "2026-07-28", "accept": "text/event-stream"}
    async with serving(FakeToolCatalog()) as url, httpx2.AsyncClient() as http:
        for method in ("GET", "DELETE"):
            received = await http.request(method, f"{url}/mcp", headers=headers)
            assert (received.status_code, received.headers["allow"]) == (405, "POST")
        assert (await http.head(f"{url}/mcp", headers={"accept": "text/event-stream"})).status_code == 405
        assert (await http.get(f"{url}/mcp", headers={"accept": "text/html"})).status_code == 406


async def test_the_longest_unused_session_makes_room_for_a_new_one() -> None:
    async with serving(FakeToolCatalog(), sessions=McpSessions(per_caller=2)) as url:
        first, second = await introduced(url), await introduced(url)
        await post(url, request("ping"), first)
        third = await introduced(url)
        statuses = [(await post(url, request("ping"), session)).status for session in (first, second, third)]
    assert statuses == [200, 404, 200]


async def test_sessions_that_are_all_in_use_make_no_room() -> None:
    waiting = BlockingTool()
    async with (
        serving(FakeToolCatalog(tool("waits", waiting)), sessions=McpSessions(per_caller=1)) as url,
        HttpConnection(url) as caller,
    ):
        await caller.post("/mcp", request("tools/call", name="waits"), BOTH, await introduced(url))
        await waiting.begun.wait()
        received = await post(url, request("initialize", **HELLO))
    assert (received.status, received.headers["retry-after"]) == (429, "30")


async def test_an_unused_session_expires_and_a_used_one_does_not() -> None:
    now = [0.0]
    async with serving(FakeToolCatalog(), sessions=McpSessions(idle_seconds=10, clock=lambda: now[0])) as url:
        used, unused = await introduced(url), await introduced(url)
        now[0] = 8
        await post(url, request("ping"), used)
        now[0] = 12
        statuses = [(await post(url, request("ping"), session)).status for session in (used, unused)]
    assert statuses == [200, 404]


async def test_without_sessions_every_request_stands_for_itself() -> None:
    async with serving(FakeToolCatalog(tool("one")), sessions=McpSessions(per_caller=0)) as url:
        received = await post(url, request("initialize", **HELLO))
        called = await post(url, request("tools/call", name="one"), "mcp-protocol-version: 2025-11-25")
    assert "mcp-session-id" not in received.headers
    assert called.json["result"]["content"] == [{"type": "text", "text": "done"}]


async def test_a_subscription_is_acknowledged_first_and_reported_only_what_was_asked() -> None:
    catalog = FakeToolCatalog(tool("one"))
    async with (
        serving(catalog, pace=StreamKeepaliveTimings(10, 60)) as url,
        HttpConnection(url) as wants,
        HttpConnection(url) as does_not,
    ):
        for caller, wanted in ((wants, {"toolsListChanged": True}), (does_not, {"promptsListChanged": True})):
            payload, *headers = modern("subscriptions/listen", BOTH, notifications=wanted)
            await caller.post("/mcp", payload, *headers)
            await caller.head()
            assert await caller.chunk() == b": ping\n"
            acknowledged = _message(await caller.chunk())
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["notifications"] == {
                name: True for name in wanted if name == "toolsListChanged"
            }
        catalog.add(*tool("two"))
        changed = _message(await wants.chunk())
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 1}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(does_not.chunk(), 0.05)


async def test_a_server_that_stops_ends_its_subscriptions_in_order() -> None:
    async with serving(FakeToolCatalog(), pace=StreamKeepaliveTimings(10, 60), drain_seconds=5) as url:
        caller = await HttpConnection(url).__aenter__()
        payload, *headers = modern("subscriptions/listen", BOTH, notifications={"toolsListChanged": True})
        await caller.post("/mcp", payload, *headers)
        await caller.head()
        await caller.chunk()
        await caller.chunk()
    ended = _message(await caller.chunk())
    caller.abort()
    assert (ended["id"], ended["result"]["resultType"]) == (1, "complete")


async def test_a_server_that_stops_sends_an_error_to_clients_that_wait_for_a_tool() -> None:
    waiting = BlockingTool()
    async with serving(FakeToolCatalog(tool("waits", waiting)), pace=StreamKeepaliveTimings(0, 60)) as url:
        caller = await HttpConnection(url).__aenter__()
        await caller.post("/mcp", request("tools/call", name="waits"), BOTH)
        await caller.head()
        await caller.chunk()
        await waiting.begun.wait()
    emitted = _message(await caller.chunk())
    caller.abort()
    assert emitted["error"]["message"] == "The server is shutting down."
    assert waiting.cancelled.is_set()


def _message(piece: bytes) -> Any:
    assert piece.startswith(b"event: message\ndata: ")
    return msgspec.json.decode(piece.partition(b"data: ")[2])
