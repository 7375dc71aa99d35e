"""The protocol without a transport: listings, results and progress by the rules of each revision (spec: R8)."""

import asyncio
import contextlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.server.conformance import AUDIO, IMAGE
from tests.mcp.server.fake_catalog import FakeToolCatalog, text_output, tool
from toolgate.auth.authenticator import Caller
from toolgate.conversation.message import Media, Text
from toolgate.mcp.protocol.jsonrpc import RpcNotification, RpcRequest, RpcRequestRefused, RpcResultResponse
from toolgate.mcp.protocol.revisions import STATELESS, WITH_HANDSHAKE
from toolgate.mcp.server.client_state import McpClientState
from toolgate.mcp.server.methods import McpMethods
from toolgate.mcp.server.outbox import LIMIT, McpOutbox
from toolgate.mcp.server.progress import ProgressNotifier
from toolgate.mcp.server.results import encode_output
from toolgate.mcp.server.sessions import McpSessions
from toolgate.mcp.server.tool_list import encode_page, encode_tool
from toolgate.mcp.server.tool_update_listeners import ToolUpdateListeners
from toolgate.tools.tool import CallProgressUpdate, ReportProgress, ServerToolDefinition, ToolOutput

REVISIONS = (STATELESS, *WITH_HANDSHAKE)


def specs(*names: str) -> list[ServerToolDefinition]:
    return [tool(name)[0] for name in names]


def names(shown: dict[str, Any]) -> list[str]:
    return [one["name"] for one in shown["tools"]]


def test_a_listing_goes_on_after_the_last_tool_shown_whatever_was_added_or_removed_before_it() -> None:
    cursor = encode_page(specs("a", "b", "c", "d"), None, STATELESS, 2)["nextCursor"]
    assert names(encode_page(specs("a", "b", "c", "d"), cursor, STATELESS, 2)) == ["c", "d"]
    assert names(encode_page(specs("new", "a", "b", "c", "d"), cursor, STATELESS, 2)) == ["c", "d"]
    assert names(encode_page(specs("b", "c", "d"), cursor, STATELESS, 2)) == ["c", "d"]
    assert names(encode_page(specs("a", "x", "c", "d"), cursor, STATELESS, 2)) == ["c", "d"]
    assert names(encode_page(specs("a"), cursor, STATELESS, 2)) == []


@given(st.integers(0, 30), st.integers(1, 7))
def test_pages_hold_every_tool_once(count: int, size: int) -> None:
    tools, shown, cursor = specs(*[f"t{number}" for number in range(count)]), [], None
    while True:
        part = encode_page(tools, cursor, STATELESS, size)
        shown += names(part)
        cursor = part.get("nextCursor")
        if cursor is None:
            break
    assert shown == [spec.name for spec in tools]


@given(st.text(max_size=30))
def test_a_cursor_that_was_not_made_here_is_refused_or_harmless(cursor: str) -> None:
    with contextlib.suppress(RpcRequestRefused):
        assert names(encode_page(specs("a"), cursor, STATELESS)) in (["a"], [])


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_listed_schema_is_the_tools_own(revision: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "$defs": {"a": {}}}
    assert encode_tool(tool("a", input_schema=schema)[0], revision)["inputSchema"] == schema
    assert encode_tool(tool("a", input_schema={"properties": {}})[0], revision)["inputSchema"] == {
        "properties": {},
        "type": "object",
    }
    assert "$schema" not in encode_tool(tool("a")[0], revision)["inputSchema"]


def test_only_the_newest_revision_knows_outputs_that_are_no_objects() -> None:
    spec = tool("a", output_schema={"type": "array"})[0]
    emitted = {revision: "outputSchema" in encode_tool(spec, revision) for revision in REVISIONS}
    assert [revision for revision, shown in emitted.items() if shown] == [STATELESS]
    output = ToolOutput((), structured=[1])
    structured = {revision: encode_output(output, revision).get("structuredContent") for revision in REVISIONS}
    assert structured == {STATELESS: [1], **dict.fromkeys(WITH_HANDSHAKE)}
    assert all(encode_output(output, one)["content"] == [{"type": "text", "text": "[1]"}] for one in REVISIONS)


@pytest.mark.parametrize(
    "icon", ["$(search)", "icon.png", "http://example.org/i.png", "javascript:alert(1)", "file:///i"]
)
def test_an_icon_that_clients_must_refuse_is_not_shown(icon: str) -> None:
    assert "icons" not in encode_tool(tool("a", icon=icon)[0], STATELESS)


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_revision_gets_only_the_kinds_of_content_it_knows(revision: str) -> None:
    link, video = Media("image", url="https://example.org/i"), Media("video", "video/mp4", "AAAA", name="a b.mp4")
    lost = Media("file", file_id="file_1", name="x")
    emitted = encode_output(ToolOutput((Text("t"), IMAGE, AUDIO, link, video, lost)), revision)["content"]
    kinds = [part["type"] for part in emitted]
    assert kinds[:2] == ["text", "image"]
    assert kinds[2] == ("resource" if revision == "2024-11-05" else "audio")
    assert kinds[3] == ("resource_link" if revision >= "2025-06-18" else "text")
    assert kinds[4:] == ["resource", "text"]
    assert emitted[4]["resource"] == {"uri": "toolgate://output/4/a%20b.mp4", "mimeType": "video/mp4", "blob": "AAAA"}
    assert "file_1" in emitted[5]["text"]


def test_a_file_from_elsewhere_keeps_its_address() -> None:
    (file,) = encode_output(ToolOutput((Media("file", None, "AAAA", name="ui://app/1"),)), STATELESS)["content"]
    assert file["resource"] == {"uri": "ui://app/1", "mimeType": "application/octet-stream", "blob": "AAAA"}


@pytest.mark.parametrize("revision", REVISIONS)
def test_results_and_listings_satisfy_the_official_types(revision: str) -> None:
    output = ToolOutput((Text("t"), IMAGE, AUDIO, Media("file", None, "AAAA")), True, {"a": 1}, {"x/y": 1})
    result = mcp_types.CallToolResult.model_validate(encode_output(output, revision))
    assert (result.is_error, result.structured_content, result.meta) == (True, {"a": 1}, {"x/y": 1})
    mcp_types.Tool.model_validate(
        encode_tool(tool("a", display_name="A", icon="data:image/png;base64,AA")[0], revision)
    )


def notifications_of(token: Any, level: Any, *progress: CallProgressUpdate) -> list[RpcNotification]:
    sent: list[RpcNotification] = []
    notifier = ProgressNotifier(token, level, "tool", sent.append)
    for one in progress:
        notifier(one)
    notifier.end()
    notifier(CallProgressUpdate("too late", 99))
    return sent


@pytest.mark.parametrize("token", ["a", "", 0, 7])
def test_progress_carries_the_clients_own_token(token: Any) -> None:
    (sent,) = notifications_of(token, None, CallProgressUpdate("half", 1, 2))
    assert sent.params == {"progressToken": token, "progress": 1, "total": 2, "message": "half"}


@pytest.mark.parametrize("token", [None, True, 1.5, {}, []])
def test_without_a_valid_token_or_a_level_nothing_is_sent(token: Any) -> None:
    assert notifications_of(token, None, CallProgressUpdate("half", 1, 2)) == []
    assert notifications_of(token, "warning", CallProgressUpdate("half", 1, 2)) == []
    assert [
        one.method for one in notifications_of(token, "info", CallProgressUpdate("half"), CallProgressUpdate(done=1))
    ] == ["notifications/message"]


@given(
    st.lists(
        st.builds(
            CallProgressUpdate, st.none() | st.just("m"), st.none() | st.floats(0, 100), st.none() | st.just(100.0)
        )
    )
)
def test_progress_always_grows(progress: list[CallProgressUpdate]) -> None:
    values = [one.params["progress"] for one in notifications_of("t", None, *progress)]
    assert len(values) == len(progress)
    assert all(before < after for before, after in pairwise(values))


async def test_notifications_that_are_not_read_are_dropped_and_responses_are_not() -> None:
    outbox = McpOutbox()
    for number in range(LIMIT + 50):
        outbox.notify(RpcNotification("m", {"number": number}))
    outbox.respond(RpcResultResponse(1, {}))
    taken = outbox.take()
    assert (len(taken), taken[-1]) == (LIMIT + 1, RpcResultResponse(1, {}))


async def test_changes_while_a_listener_does_not_wait_are_merged_into_one() -> None:
    catalog = FakeToolCatalog()
    changes = ToolUpdateListeners(catalog.subscribe)
    with changes.listening() as listener:
        catalog.add(*tool("a"))
        catalog.add(*tool("b"))
        assert await listener.next()
        waiting = asyncio.ensure_future(listener.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        changes.close()
        assert not await waiting
    assert catalog.listeners == set()
    with changes.listening() as late:
        assert not await late.next()


def test_a_session_follows_what_its_caller_may_do_now() -> None:
    sessions, before = McpSessions(), Caller("me", frozenset(("tools", "admin")))
    id = sessions.open(McpClientState(before))
    now = Caller("me", frozenset(("tools",)))
    assert id is not None
    assert sessions.find(id, now).caller is now


async def test_a_tool_that_goes_on_telling_after_its_end_is_not_noticed() -> None:
    reporters: list[ReportProgress] = []

    async def lingers(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        reporters.append(report_progress)
        return text_output("done")

    received: list[Any] = []
    catalog = FakeToolCatalog(tool("lingers", lingers))
    service = McpMethods(catalog, ToolUpdateListeners(catalog.subscribe))
    request = RpcRequest(1, "tools/call", {"name": "lingers", "_meta": {"progressToken": 1}})
    await service.reply(request, McpClientState(Caller("me", frozenset())), received.append, lambda defect: None)
    reporters[0](CallProgressUpdate("still here"))
    assert received == []
