"""Servers behind an address: the official SDK's in both eras, and a scripted one that misbehaves (T6; field: E32, E34)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.mcp.client.recording_client import RecordingHttpClient
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving
from tests.mcp.client.sdk_server import made, on_http
from tests.mcp.client.sources import PATIENCE, calling, eventually, opened, source_of, tool
from toolgate.conversation.message import Text
from toolgate.mcp.client import McpSource, RemoteServerConfig
from toolgate.tools.tool import CallProgressUpdate, ToolCallFailed

ERAS = pytest.mark.parametrize("handshake", [True, False], ids=["2025-11-25", "2026-07-28"])
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


def remote(url: str, client: RecordingHttpClient | None = None, handshake: bool = False, **options: Any) -> McpSource:
    return source_of(RemoteServerConfig(url, handshake=handshake), http=client or RecordingHttpClient(), **options)


@ERAS
@pytest.mark.parametrize("whole", [True, False], ids=["json", "stream"])
async def test_the_sdks_server_is_listed_and_called(handshake: bool, whole: bool) -> None:
    emitted: list[CallProgressUpdate] = []
    async with on_http(made(), json_response=whole) as url, opened(remote(url, handshake=handshake)) as source:
        assert source.problem is None
        spec = tool(source, "add").spec
        assert (spec.display_name, spec.description, spec.name) == ("Add two", "Adds numbers.", "box_add")
        assert spec.output_schema is not None
        assert (await tool(source, "add").invoke(calling({"a": 1, "b": 2}))).structured == {"total": 3}
        assert (await tool(source, "walk").invoke(calling(report_progress=emitted.append))).content == (Text("there"),)
        assert whole or [progress.message for progress in emitted] == ["step 1", "step 2", "step 3"]
        assert (await tool(source, "add").invoke(calling({"a": "x", "b": 2}))).is_error


@ERAS
async def test_a_session_has_an_id_and_a_revision_in_every_request_and_ends_with_us(handshake: bool) -> None:
    client = RecordingHttpClient()
    async with on_http(made()) as url, opened(remote(url, client, handshake)) as source:
        await tool(source, "add").invoke(calling({"a": 1, "b": 2}))
    last = client.last("tools/call")
    assert last["mcp-protocol-version"] == ("2025-11-25" if handshake else "2026-07-28")
    assert ("mcp-session-id" in last) is handshake
    assert ("mcp-name" in last) is not handshake
    assert (client.sent[-1][0] == "DELETE") is handshake


async def test_arguments_go_into_headers_where_the_server_wants_them_there() -> None:
    client = RecordingHttpClient()
    async with on_http(made()) as url, opened(remote(url, client)) as source:
        output = await tool(source, "routed").invoke(calling({"region": "Zürich"}))
        assert output.content[0] == Text("Zürich")
    assert client.last("tools/call")["mcp-param-region"] == "=?base64?WsO8cmljaA==?="


@ERAS
async def test_an_announced_tool_appears(handshake: bool) -> None:
    """field: E34"""
    client = RecordingHttpClient()
    async with on_http(made()) as url, opened(remote(url, client, handshake)) as source:
        await eventually(lambda: client.sent[-1][0] == "GET" or b"subscriptions/listen" in client.sent[-1][3])
        assert not (await tool(source, "grow").invoke(calling())).is_error
        await eventually(lambda: any(tool.spec.origin == "grown" for tool in source.tools))


@ERAS
async def test_a_cancelled_call_returns_at_once_and_the_server_learns_of_it(handshake: bool) -> None:
    client = RecordingHttpClient()
    async with on_http(made()) as url, opened(remote(url, client, handshake)) as source:
        call = asyncio.create_task(tool(source, "sleep").invoke(calling()))
        await eventually(lambda: b"tools/call" in client.sent[-1][3])
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if handshake:
            await eventually(lambda: any(b"notifications/cancelled" in body for *_, body in client.sent))
        assert (await tool(source, "add").invoke(calling({"a": 1, "b": 2}))).structured == {"total": 3}


async def handshaking(asked: ReceivedRequest) -> ScriptedResponse:
    """A server of the old era that behaves; it remembers one session."""
    match asked.message.get("method"):
        case "server/discover":
            return ScriptedResponse(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "what?"}})
        case "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            return ScriptedResponse(200, answer(asked, result), {"mcp-session-id": "s1"})
        case "tools/list":
            return ScriptedResponse(200, answer(asked, {"tools": [TOOL]}))
        case "tools/call":
            return ScriptedResponse(200, answer(asked, {"content": [{"type": "text", "text": "ran"}]}))
        case _:
            return ScriptedResponse(202 if asked.method == "POST" else 405)


def answer(asked: ReceivedRequest, result: Any) -> Any:
    return {"jsonrpc": "2.0", "id": asked.message["id"], "result": result}


async def test_a_forgotten_session_is_begun_anew_and_the_call_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolgate.mcp.client.backoff._STABLE_SECONDS", 0.0)  # any connection counts as one that held
    forgotten = True

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        nonlocal forgotten
        if asked.message.get("method") == "tools/call" and forgotten:
            forgotten = False
            return ScriptedResponse(404)
        return await handshaking(asked)

    shown: list[int] = []
    async with serving(script) as web, opened(remote(web.url)) as source:
        source._on_change = lambda: shown.append(len(source.tools))
        with pytest.raises(ToolCallFailed, match="no longer knows our session"):
            await tool(source).invoke(calling())
        await eventually(lambda: web.methods().count("tools/list") == 2 and source.problem is None)
        assert web.methods().count("tools/call") == 1
        assert shown == [], "its tools were there all the time"
        assert (await tool(source).invoke(calling())).content == (Text("ran"),)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (ScriptedResponse(500), "answered HTTP 500"),
        (ScriptedResponse(307, headers={"location": "http://169.254.169.254/latest"}), "redirect to 169.254.169.254"),
        (
            ScriptedResponse(200, {"jsonrpc": "2.0", "id": 999, "result": {}}),
            "ended its answer before it had given one",
        ),
        (ScriptedResponse(200, "garbage"), "ended its answer"),
        (ScriptedResponse(202), "gave no answer"),
        (
            ScriptedResponse(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad city"}}),
            "bad city",
        ),
    ],
)
async def test_a_bad_answer_to_a_call_fails_that_call_alone(says: ScriptedResponse, words: str) -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        return says if asked.message.get("method") == "tools/call" else await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)) as source:
        with pytest.raises(ToolCallFailed, match=words):
            await tool(source).invoke(calling())
        assert web.methods().count("tools/call") == 1
        assert source.tools


@pytest.mark.parametrize("status", [401, 403])
async def test_a_tool_that_our_token_does_not_allow_leaves_the_other_tools_alone(status: int) -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        refused = asked.message.get("method") == "tools/call" and asked.message["params"]["arguments"]
        return ScriptedResponse(status) if refused else await handshaking(asked)

    shown: list[int] = []
    async with serving(script) as web, opened(remote(web.url)) as source:
        source._on_change = lambda: shown.append(len(source.tools))
        with pytest.raises(ToolCallFailed, match=f"refused our token .HTTP {status}."):
            await tool(source).invoke(calling({"all": True}))
        await eventually(lambda: web.methods().count("tools/list") == 2)
        assert (await tool(source).invoke(calling())).content == (Text("ran"),)
        assert web.methods().count("initialize") == 1
        assert shown == [], "its tools were there all the time"


async def test_an_answer_without_a_result_ends_the_call_although_its_stream_stays_open() -> None:
    over = asyncio.Event()

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        async def stay_open() -> AsyncIterator[Any]:
            yield answer(asked, None)
            await over.wait()

        calls = asked.message.get("method") == "tools/call"
        return ScriptedResponse(events=stay_open()) if calls else await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)) as source, asyncio.timeout(PATIENCE):
        with pytest.raises(ToolCallFailed, match="neither a result nor an error"):
            await tool(source).invoke(calling())
        over.set()


async def test_a_stream_that_is_cut_off_in_the_middle_fails_the_call_and_it_is_not_sent_again() -> None:
    async def cut() -> AsyncIterator[Any]:
        yield {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "working"}}

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        return (
            ScriptedResponse(events=cut()) if asked.message.get("method") == "tools/call" else await handshaking(asked)
        )

    async with serving(script) as web, opened(remote(web.url)) as source:
        with pytest.raises(ToolCallFailed, match="may or may not have taken effect"):
            await tool(source).invoke(calling())
        assert web.methods().count("tools/call") == 1


async def test_a_server_that_is_gone_loses_its_tools_and_one_that_is_back_has_them_again() -> None:
    up = True

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        return await handshaking(asked) if up else ScriptedResponse(503)

    async with serving(script) as web, opened(remote(web.url, check_seconds=0.01)) as source:
        up = False
        await eventually(lambda: not source.tools)
        assert "answered HTTP 503" in (source.problem or "")
        up = True
        await eventually(lambda: source.tools)


async def test_an_address_without_a_server_is_reported_in_a_sentence() -> None:
    async with opened(remote("http://127.0.0.1:1/mcp")) as source:
        assert "cannot be reached: 127.0.0.1:1 refused the connection" in (source.problem or "")


async def test_one_broken_server_leaves_the_others_alone() -> None:
    """field: E32"""

    async def closed(asked: ReceivedRequest) -> ScriptedResponse:
        return ScriptedResponse(401, headers={"www-authenticate": "Bearer"})

    async with (
        serving(closed) as bad,
        serving(handshaking) as good,
        opened(remote(good.url)) as source,
    ):
        other = remote(bad.url)
        await other.open(lambda: None)
        await other.settled()
        assert "wants a login (HTTP 401)" in (other.problem or "")
        assert (await tool(source).invoke(calling())).content == (Text("ran"),)
        await other.aclose()


async def test_only_the_configured_headers_travel_and_every_address_is_checked_first() -> None:
    refusing = False

    async def check(url: str) -> None:
        if refusing:
            raise ToolCallFailed("that address is not for tools")

    client = RecordingHttpClient()
    async with serving(handshaking) as web:
        server = RemoteServerConfig(web.url, headers={"X-Team": "blue"})
        async with opened(source_of(server, http=client, check_url=check)) as source:
            await tool(source).invoke(calling())
            assert {headers["x-team"] for _, _, headers, _ in client.sent} == {"blue"}
            assert not any("authorization" in headers for _, _, headers, _ in client.sent)
            refusing = True
            sent = len(client.sent)
            with pytest.raises(ToolCallFailed, match="not for tools"):
                await tool(source).invoke(calling())
            assert len(client.sent) == sent


async def test_a_session_id_that_could_break_a_header_is_refused() -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        says = await handshaking(asked)
        return says._replace(headers={"mcp-session-id": "a b"}) if says.headers else says

    async with serving(script) as web, opened(remote(web.url)) as source:
        assert "session id" in (source.problem or "")


async def test_a_stream_of_news_that_ends_at_once_is_not_opened_again_and_again() -> None:
    """field: E37"""

    async def nothing() -> AsyncIterator[Any]:
        return
        yield

    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        if asked.method == "GET":
            return ScriptedResponse(events=nothing())
        if asked.message.get("method") == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
            return ScriptedResponse(200, answer(asked, result))
        return await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)):
        await eventually(lambda: any(asked.method == "GET" for asked in web.asked))
        await asyncio.sleep(0.3)
        assert sum(asked.method == "GET" for asked in web.asked) == 1


async def test_a_defect_of_ours_leaves_no_tools_on_show(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: emitted.append(context["message"]))
    monkeypatch.setattr("toolgate.mcp.client.source.review", lambda *_: 1 / 0)
    async with serving(handshaking) as web, opened(remote(web.url)) as source:
        assert "a defect in Toolgate: ZeroDivisionError" in (source.problem or "")
        assert emitted == ["the source mcp/box stopped"]
