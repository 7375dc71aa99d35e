"""Servers behind an address: the official SDK's in both eras, and a scripted one that misbehaves (T6; field: E32, E34)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.tools.mcp.carrier import Carrier
from tests.tools.mcp.sdk_server import made, on_http
from tests.tools.mcp.staging import calling, eventually, opened, source_of, tool
from tests.tools.mcp.web import Asked, Says, serving
from toolgate.conversation.message import Text
from toolgate.tools.sources.mcp import McpSource, Remote
from toolgate.tools.tool import Progress, ToolFailure

ERAS = pytest.mark.parametrize("handshake", [True, False], ids=["2025-11-25", "2026-07-28"])
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


def remote(url: str, carrier: Carrier | None = None, handshake: bool = False, **options: Any) -> McpSource:
    return source_of(Remote(url, handshake=handshake), http=carrier or Carrier(), **options)


@ERAS
@pytest.mark.parametrize("whole", [True, False], ids=["json", "stream"])
async def test_the_sdks_server_is_listed_and_called(handshake: bool, whole: bool) -> None:
    told: list[Progress] = []
    async with on_http(made(), json_response=whole) as url, opened(remote(url, handshake=handshake)) as source:
        assert source.trouble is None
        spec = tool(source, "add").spec
        assert (spec.display_name, spec.description, spec.name) == ("Add two", "Adds numbers.", "box_add")
        assert spec.output_schema is not None
        assert (await tool(source, "add").invoke(calling({"a": 1, "b": 2}))).structured == {"total": 3}
        assert (await tool(source, "walk").invoke(calling(tell=told.append))).content == (Text("there"),)
        assert whole or [progress.message for progress in told] == ["step 1", "step 2", "step 3"]
        assert (await tool(source, "add").invoke(calling({"a": "x", "b": 2}))).is_error


@ERAS
async def test_a_session_has_an_id_and_a_revision_in_every_request_and_ends_with_us(handshake: bool) -> None:
    carrier = Carrier()
    async with on_http(made()) as url, opened(remote(url, carrier, handshake)) as source:
        await tool(source, "add").invoke(calling({"a": 1, "b": 2}))
    last = carrier.last("tools/call")
    assert last["mcp-protocol-version"] == ("2025-11-25" if handshake else "2026-07-28")
    assert ("mcp-session-id" in last) is handshake
    assert ("mcp-name" in last) is not handshake
    assert (carrier.sent[-1][0] == "DELETE") is handshake


async def test_arguments_go_into_headers_where_the_server_wants_them_there() -> None:
    carrier = Carrier()
    async with on_http(made()) as url, opened(remote(url, carrier)) as source:
        said = await tool(source, "routed").invoke(calling({"region": "Zürich"}))
        assert said.content[0] == Text("Zürich")
    assert carrier.last("tools/call")["mcp-param-region"] == "=?base64?WsO8cmljaA==?="


@ERAS
async def test_an_announced_tool_appears(handshake: bool) -> None:
    """field: E34"""
    carrier = Carrier()
    async with on_http(made()) as url, opened(remote(url, carrier, handshake)) as source:
        await eventually(lambda: carrier.sent[-1][0] == "GET" or b"subscriptions/listen" in carrier.sent[-1][3])
        assert not (await tool(source, "grow").invoke(calling())).is_error
        await eventually(lambda: any(tool.spec.origin == "grown" for tool in source.tools))


@ERAS
async def test_a_cancelled_call_returns_at_once_and_the_server_learns_of_it(handshake: bool) -> None:
    carrier = Carrier()
    async with on_http(made()) as url, opened(remote(url, carrier, handshake)) as source:
        call = asyncio.create_task(tool(source, "sleep").invoke(calling()))
        await eventually(lambda: b"tools/call" in carrier.sent[-1][3])
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if handshake:
            await eventually(lambda: any(b"notifications/cancelled" in body for *_, body in carrier.sent))
        assert (await tool(source, "add").invoke(calling({"a": 1, "b": 2}))).structured == {"total": 3}


async def handshaking(asked: Asked) -> Says:
    """A server of the old era that behaves; it remembers one session."""
    match asked.message.get("method"):
        case "server/discover":
            return Says(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "what?"}})
        case "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            return Says(200, answer(asked, result), {"mcp-session-id": "s1"})
        case "tools/list":
            return Says(200, answer(asked, {"tools": [TOOL]}))
        case "tools/call":
            return Says(200, answer(asked, {"content": [{"type": "text", "text": "ran"}]}))
        case _:
            return Says(202 if asked.method == "POST" else 405)


def answer(asked: Asked, result: Any) -> Any:
    return {"jsonrpc": "2.0", "id": asked.message["id"], "result": result}


async def test_a_forgotten_session_is_begun_anew_and_the_call_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolgate.tools.sources.mcp.backoff._STEADY", 0.0)  # any connection counts as one that held
    forgotten = True

    async def script(asked: Asked) -> Says:
        nonlocal forgotten
        if asked.message.get("method") == "tools/call" and forgotten:
            forgotten = False
            return Says(404)
        return await handshaking(asked)

    shown: list[int] = []
    async with serving(script) as web, opened(remote(web.url)) as source:
        source._on_change = lambda: shown.append(len(source.tools))
        with pytest.raises(ToolFailure, match="no longer knows our session"):
            await tool(source).invoke(calling())
        await eventually(lambda: web.methods().count("tools/list") == 2 and source.trouble is None)
        assert web.methods().count("tools/call") == 1
        assert shown == [], "its tools were there all the time"
        assert (await tool(source).invoke(calling())).content == (Text("ran"),)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Says(500), "answered HTTP 500"),
        (Says(307, headers={"location": "http://169.254.169.254/latest"}), "redirect to 169.254.169.254"),
        (Says(200, {"jsonrpc": "2.0", "id": 999, "result": {}}), "ended its answer before it had given one"),
        (Says(200, "garbage"), "ended its answer"),
        (Says(202), "gave no answer"),
        (Says(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad city"}}), "bad city"),
    ],
)
async def test_a_bad_answer_to_a_call_fails_that_call_alone(says: Says, words: str) -> None:
    async def script(asked: Asked) -> Says:
        return says if asked.message.get("method") == "tools/call" else await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)) as source:
        with pytest.raises(ToolFailure, match=words):
            await tool(source).invoke(calling())
        assert web.methods().count("tools/call") == 1
        assert source.tools


async def test_a_stream_that_is_cut_off_in_the_middle_fails_the_call_and_it_is_not_sent_again() -> None:
    async def cut() -> AsyncIterator[Any]:
        yield {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "working"}}

    async def script(asked: Asked) -> Says:
        return Says(events=cut()) if asked.message.get("method") == "tools/call" else await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)) as source:
        with pytest.raises(ToolFailure, match="may or may not have taken effect"):
            await tool(source).invoke(calling())
        assert web.methods().count("tools/call") == 1


async def test_a_server_that_is_gone_loses_its_tools_and_one_that_is_back_has_them_again() -> None:
    up = True

    async def script(asked: Asked) -> Says:
        return await handshaking(asked) if up else Says(503)

    async with serving(script) as web, opened(remote(web.url, check_seconds=0.01)) as source:
        up = False
        await eventually(lambda: not source.tools)
        assert "answered HTTP 503" in (source.trouble or "")
        up = True
        await eventually(lambda: source.tools)


async def test_an_address_where_nobody_listens_is_said_in_words() -> None:
    async with opened(remote("http://127.0.0.1:1/mcp")) as source:
        assert "cannot be reached: 127.0.0.1:1 refused the connection" in (source.trouble or "")


async def test_one_broken_server_leaves_the_others_alone() -> None:
    """field: E32"""

    async def closed(asked: Asked) -> Says:
        return Says(401, headers={"www-authenticate": "Bearer"})

    async with (
        serving(closed) as bad,
        serving(handshaking) as good,
        opened(remote(good.url)) as source,
    ):
        other = remote(bad.url)
        await other.open(lambda: None)
        await other.settled()
        assert "wants a login (HTTP 401)" in (other.trouble or "")
        assert (await tool(source).invoke(calling())).content == (Text("ran"),)
        await other.aclose()


async def test_only_the_configured_headers_travel_and_every_address_is_checked_first() -> None:
    refusing = False

    async def check(url: str) -> None:
        if refusing:
            raise ToolFailure("that address is not for tools")

    carrier = Carrier()
    async with serving(handshaking) as web:
        server = Remote(web.url, headers={"X-Team": "blue"})
        async with opened(source_of(server, http=carrier, check_url=check)) as source:
            await tool(source).invoke(calling())
            assert {headers["x-team"] for _, _, headers, _ in carrier.sent} == {"blue"}
            assert not any("authorization" in headers for _, _, headers, _ in carrier.sent)
            refusing = True
            sent = len(carrier.sent)
            with pytest.raises(ToolFailure, match="not for tools"):
                await tool(source).invoke(calling())
            assert len(carrier.sent) == sent


async def test_a_session_id_that_could_break_a_header_is_refused() -> None:
    async def script(asked: Asked) -> Says:
        says = await handshaking(asked)
        return says._replace(headers={"mcp-session-id": "a b"}) if says.headers else says

    async with serving(script) as web, opened(remote(web.url)) as source:
        assert "session id" in (source.trouble or "")


async def test_a_stream_of_news_that_ends_at_once_is_not_opened_again_and_again() -> None:
    """field: E37"""

    async def nothing() -> AsyncIterator[Any]:
        return
        yield

    async def script(asked: Asked) -> Says:
        if asked.method == "GET":
            return Says(events=nothing())
        if asked.message.get("method") == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
            return Says(200, answer(asked, result))
        return await handshaking(asked)

    async with serving(script) as web, opened(remote(web.url)):
        await eventually(lambda: any(asked.method == "GET" for asked in web.asked))
        await asyncio.sleep(0.3)
        assert sum(asked.method == "GET" for asked in web.asked) == 1


async def test_a_defect_of_ours_leaves_no_tools_on_show(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    monkeypatch.setattr("toolgate.tools.sources.mcp.source.judge", lambda *_: 1 / 0)
    async with serving(handshaking) as web, opened(remote(web.url)) as source:
        assert "a defect in Toolgate: ZeroDivisionError" in (source.trouble or "")
        assert told == ["the source mcp/box stopped"]
