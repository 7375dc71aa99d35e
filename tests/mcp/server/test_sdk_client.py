"""The official SDK's client over a real socket, in both eras of the protocol (spec: R8)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, ResourceLink, TextContent

from tests.mcp.server.conformance import AUDIO, FILE, IMAGE
from tests.mcp.server.fake_catalog import BlockingTool, FakeToolCatalog, key, serving, text_output, tool
from tests.typed import all_of, of
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import Annotations, CallProgressUpdate, ReportProgress, ToolCallFailed, ToolOutput

WITH_HANDSHAKE, STATELESS = "legacy", "2026-07-28"
ERAS = pytest.mark.parametrize("era", [WITH_HANDSHAKE, STATELESS])
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@asynccontextmanager
async def connected(url: str, era: str, text: str = "", **options: Any) -> AsyncIterator[Client]:
    """A client that presents a key, if one is given."""
    headers = {"authorization": f"Bearer {text}"} if text else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era, **options) as client,
    ):
        yield client


@asynccontextmanager
async def shown(catalog: FakeToolCatalog, era: str, **options: Any) -> AsyncIterator[Client]:
    async with serving(catalog) as url, connected(url, era, **options) as client:
        yield client


async def everything(client: Client) -> tuple[list[str], int]:
    names: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = await client.list_tools(cursor=cursor)
        names += [one.name for one in page.tools]
        cursor, pages = page.next_cursor, pages + 1
    return names, pages


@pytest.mark.parametrize(("era", "sent"), [(WITH_HANDSHAKE, "2025-11-25"), (STATELESS, STATELESS), ("auto", STATELESS)])
async def test_clients_with_and_without_handshake_are_served(era: str, sent: str) -> None:
    async with shown(FakeToolCatalog(tool("one")), era) as client:
        assert client.protocol_version == sent
        assert [one.name for one in (await client.list_tools()).tools] == ["one"]


@ERAS
async def test_five_thousand_tools_are_listed_page_by_page_in_their_order(era: str) -> None:
    wanted = [f"tool_{number}" for number in range(5000)]
    async with shown(FakeToolCatalog(*[tool(name) for name in wanted]), era) as client:
        assert await everything(client) == (wanted, 50)


@ERAS
async def test_a_listing_has_all_fields_of_a_tool(era: str) -> None:
    spec = tool(
        "weather",
        display_name="Weather",
        input_schema=CITY,
        output_schema=CITY,
        icon="https://example.org/icon.png",
        annotations=Annotations(read_only=True, open_world=False),
    )
    async with shown(FakeToolCatalog(spec, tool("secret", private=True)), era) as client:
        (listed,) = (await client.list_tools()).tools
    assert (listed.name, listed.title, listed.description) == ("weather", "Weather", "The tool weather.")
    assert listed.input_schema == listed.output_schema == CITY
    assert [icon.src for icon in listed.icons or []] == ["https://example.org/icon.png"]
    hints = listed.annotations
    assert hints is not None
    assert (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint) == (True, False, False)


@ERAS
async def test_a_call_reaches_the_door_with_its_caller_and_its_arguments(era: str) -> None:
    catalog = FakeToolCatalog(tool("weather", "sunny", input_schema=CITY))
    async with serving(catalog, key("me")) as url, connected(url, era, "key-of-me") as client:
        result = await client.call_tool("weather", {"city": "Bonn"})
    assert result.content == [types.TextContent(type="text", text="sunny")]
    ((caller, name, arguments, text, session),) = catalog.calls
    assert (caller, name, arguments, text) == ("me", "weather", {"city": "Bonn"}, '{"city":"Bonn"}')
    assert bool(session) is (era == WITH_HANDSHAKE)


@ERAS
async def test_pictures_sounds_and_files_arrive_as_what_they_are(era: str) -> None:
    link = Media("file", "text/html", url="https://example.org/a", name="a")
    catalog = FakeToolCatalog(tool("gallery", ToolOutput((Text("Look:"), IMAGE, AUDIO, FILE, link))))
    async with shown(catalog, era) as client:
        text, image, audio, file, linked = (await client.call_tool("gallery", {})).content
    assert of(TextContent, text).text == "Look:"
    assert isinstance(image, ImageContent)
    assert (image.type, image.data, image.mime_type) == ("image", IMAGE.data, "image/png")
    assert isinstance(audio, AudioContent)
    assert (audio.type, audio.data, audio.mime_type) == ("audio", AUDIO.data, "audio/wav")
    assert isinstance(file, EmbeddedResource)
    assert isinstance(file.resource, BlobResourceContents)
    assert (file.type, file.resource.blob, file.resource.mime_type) == ("resource", FILE.data, "text/plain")
    assert isinstance(linked, ResourceLink)
    assert (linked.type, str(linked.uri), linked.mime_type) == ("resource_link", "https://example.org/a", "text/html")


@ERAS
async def test_structured_output_comes_with_its_text_and_its_meta(era: str) -> None:
    output = ToolOutput((), structured={"city": "Bonn"}, meta={"org.example/cost": 3})
    catalog = FakeToolCatalog(tool("where", output, output_schema=CITY))
    async with shown(catalog, era) as client:
        await client.list_tools()
        result = await client.call_tool("where", {})
    assert result.structured_content == {"city": "Bonn"}
    assert [part.text for part in all_of(TextContent, result.content)] == ['{"city":"Bonn"}']
    assert result.meta is not None
    assert result.meta["org.example/cost"] == 3


@ERAS
async def test_what_fails_in_a_tool_is_reported_to_the_model(era: str) -> None:
    async def fails(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        raise ToolCallFailed("No such city; try a larger one.")

    catalog = FakeToolCatalog(tool("fails", fails), tool("weather", input_schema=CITY))
    async with shown(catalog, era) as client:
        failed = await client.call_tool("fails", {})
        misused = await client.call_tool("weather", {"city": 7})
    assert failed.is_error
    assert [part.text for part in all_of(TextContent, failed.content)] == ["No such city; try a larger one."]
    assert misused.is_error
    assert "not of type" in of(TextContent, misused.content[0]).text


@ERAS
async def test_an_unknown_tool_is_a_mistake_of_the_client(era: str) -> None:
    catalog = FakeToolCatalog(tool("one"), tool("secret", private=True))
    async with shown(catalog, era) as client:
        for name in ("nothing", "secret"):
            with pytest.raises(MCPError, match=f"Unknown tool: {name}") as caught:
                await client.call_tool(name, {})
            assert caught.value.error.code == -32602


@ERAS
async def test_a_defect_is_not_reported_in_detail(era: str) -> None:
    async def breaks(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        raise ZeroDivisionError("inner matters")

    async with shown(FakeToolCatalog(tool("breaks", breaks)), era) as client:
        with pytest.raises(MCPError, match="An internal error occurred") as caught:
            await client.call_tool("breaks", {})
    assert caught.value.error.code == -32603


@ERAS
async def test_progress_is_sent_to_clients_that_requested_it_and_always_grows(era: str) -> None:
    async def counts(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        for progress in (
            CallProgressUpdate("begun"),
            CallProgressUpdate(done=5, total=10),
            CallProgressUpdate("still", 5, 10),
            CallProgressUpdate(done=10),
        ):
            report_progress(progress)
        return text_output("counted")

    received: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total, message))

    async with shown(FakeToolCatalog(tool("counts", counts)), era) as client:
        result = await client.call_tool("counts", {}, progress_callback=hear)
        await client.call_tool("counts", {})
    assert of(TextContent, result.content[0]).text == "counted"
    assert [(total, message) for _, total, message in received] == [
        (None, "begun"),
        (10, None),
        (10, "still"),
        (None, None),
    ]
    values = [value for value, _, _ in received]
    assert values == sorted(set(values))
    assert (values[0], values[1], values[3]) == (0, 5, 10)


@ERAS
async def test_progress_messages_are_log_messages_for_clients_that_requested_those(era: str) -> None:
    async def chats(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        report_progress(CallProgressUpdate("reading"))
        return text_output("read")

    received: list[tuple[str, str | None, Any]] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        received.append((params.level, params.logger, params.data))

    options = {"log_level": "info"} if era == STATELESS else {}
    async with shown(FakeToolCatalog(tool("chats", chats)), era, logging_callback=hear, **options) as client:
        if era == WITH_HANDSHAKE:
            await client.call_tool("chats", {})
            assert received == []
            with pytest.warns(MCPDeprecationWarning):
                await client.session.set_logging_level("debug")
        await client.call_tool("chats", {})
    assert received == [("info", "chats", "reading")]


@ERAS
async def test_a_client_that_gives_up_cancels_its_call(era: str) -> None:
    waiting = BlockingTool()
    async with shown(FakeToolCatalog(tool("waits", waiting), tool("one")), era) as client:
        calling = asyncio.ensure_future(client.call_tool("waits", {}))
        await waiting.begun.wait()
        calling.cancel()
        await asyncio.wait_for(waiting.cancelled.wait(), 30)
        assert of(TextContent, (await client.call_tool("one", {})).content[0]).text == "done"


@ERAS
async def test_a_call_may_take_longer_than_the_patience_for_its_first_word(era: str) -> None:
    waiting = BlockingTool()
    catalog = FakeToolCatalog(tool("waits", waiting))
    async with serving(catalog, pace=StreamKeepaliveTimings(0.01, 0.01)) as url, connected(url, era) as client:
        calling = asyncio.ensure_future(client.call_tool("waits", {}))
        await waiting.begun.wait()
        await asyncio.sleep(0.05)  # the time for some comments to pass is what this is about
        waiting.release.set()
        assert of(TextContent, (await calling).content[0]).text == "released"


async def test_a_client_with_a_session_is_notified_of_changed_tools() -> None:
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    catalog = FakeToolCatalog(tool("one"))
    async with shown(catalog, WITH_HANDSHAKE, message_handler=hear) as client:
        while not changed.is_set():  # the client opens its stream when it likes
            catalog.add(*tool("two"))
            await client.list_tools()
        assert (await everything(client))[0] == ["one", "two"]


async def test_a_stateless_client_is_notified_of_changed_tools_by_its_subscription() -> None:
    catalog = FakeToolCatalog(tool("one"))
    async with shown(catalog, STATELESS) as client, client.listen(tools_list_changed=True) as subscription:
        catalog.add(*tool("two"))
        assert await asyncio.wait_for(anext(subscription), 30) == ToolsListChanged()
        assert (await everything(client))[0] == ["one", "two"]


@ERAS
async def test_what_a_key_may_not_see_is_not_there_for_it(era: str) -> None:
    catalog = FakeToolCatalog(tool("one"), tool("two"), hidden={"guest": {"two"}})
    async with serving(catalog, key("me"), key("guest")) as url:
        async with connected(url, era, "key-of-me") as client:
            assert (await everything(client))[0] == ["one", "two"]
        async with connected(url, era, "key-of-guest") as client:
            assert (await everything(client))[0] == ["one"]
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("two", {})


@ERAS
async def test_calls_of_one_client_run_at_the_same_time(era: str) -> None:
    waiting = BlockingTool()
    async with shown(FakeToolCatalog(tool("waits", waiting), tool("one")), era) as client:
        calling = asyncio.ensure_future(client.call_tool("waits", {}))
        await waiting.begun.wait()
        assert of(TextContent, (await client.call_tool("one", {})).content[0]).text == "done"
        waiting.release.set()
        assert of(TextContent, (await calling).content[0]).text == "released"


async def test_a_client_of_the_older_era_may_ask_whether_we_are_there() -> None:
    async with shown(FakeToolCatalog(), WITH_HANDSHAKE) as client:
        with pytest.warns(MCPDeprecationWarning):
            assert await client.send_ping() is not None
