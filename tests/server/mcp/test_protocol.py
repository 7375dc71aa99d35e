"""The protocol without a transport: listings, results and progress by the rules of each revision (R8)."""

import asyncio
import contextlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.mcp.conformance import AUDIO, IMAGE
from tests.server.mcp.doors import FakeDoor, says, tool
from toolgate.conversation.message import Media, Text
from toolgate.server.callers.auth import Caller
from toolgate.server.mcp.changes import Changes
from toolgate.server.mcp.jsonrpc import Request, RpcError
from toolgate.server.mcp.listing import describe, page
from toolgate.server.mcp.outbox import LIMIT, Outbox
from toolgate.server.mcp.peer import Peer
from toolgate.server.mcp.results import encode_output
from toolgate.server.mcp.revisions import LEGACY, MODERN
from toolgate.server.mcp.service import Service
from toolgate.server.mcp.sessions import Sessions
from toolgate.server.mcp.telling import Telling
from toolgate.tools.tool import Output, Progress, Tell, ToolSpec

REVISIONS = (MODERN, *LEGACY)


def specs(*names: str) -> list[ToolSpec]:
    return [tool(name)[0] for name in names]


def names(shown: dict[str, Any]) -> list[str]:
    return [one["name"] for one in shown["tools"]]


def test_a_listing_goes_on_after_the_last_tool_shown_whatever_was_added_or_removed_before_it() -> None:
    cursor = page(specs("a", "b", "c", "d"), None, MODERN, 2)["nextCursor"]
    assert names(page(specs("a", "b", "c", "d"), cursor, MODERN, 2)) == ["c", "d"]
    assert names(page(specs("new", "a", "b", "c", "d"), cursor, MODERN, 2)) == ["c", "d"]
    assert names(page(specs("b", "c", "d"), cursor, MODERN, 2)) == ["c", "d"]
    assert names(page(specs("a", "x", "c", "d"), cursor, MODERN, 2)) == ["c", "d"]
    assert names(page(specs("a"), cursor, MODERN, 2)) == []


@given(st.integers(0, 30), st.integers(1, 7))
def test_pages_hold_every_tool_once(count: int, size: int) -> None:
    tools, shown, cursor = specs(*[f"t{number}" for number in range(count)]), [], None
    while True:
        part = page(tools, cursor, MODERN, size)
        shown += names(part)
        cursor = part.get("nextCursor")
        if cursor is None:
            break
    assert shown == [spec.name for spec in tools]


@given(st.text(max_size=30))
def test_a_cursor_that_was_not_made_here_is_refused_or_harmless(cursor: str) -> None:
    with contextlib.suppress(RpcError):
        assert names(page(specs("a"), cursor, MODERN)) in (["a"], [])


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_listed_schema_is_the_tools_own(revision: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "$defs": {"a": {}}}
    assert describe(tool("a", input_schema=schema)[0], revision)["inputSchema"] == schema
    assert describe(tool("a", input_schema={"properties": {}})[0], revision)["inputSchema"] == {
        "properties": {},
        "type": "object",
    }
    assert "$schema" not in describe(tool("a")[0], revision)["inputSchema"]


def test_only_the_newest_revision_knows_outputs_that_are_no_objects() -> None:
    spec = tool("a", output_schema={"type": "array"})[0]
    told = {revision: "outputSchema" in describe(spec, revision) for revision in REVISIONS}
    assert [revision for revision, shown in told.items() if shown] == [MODERN]
    output = Output((), structured=[1])
    structured = {revision: encode_output(output, revision).get("structuredContent") for revision in REVISIONS}
    assert structured == {MODERN: [1], **dict.fromkeys(LEGACY)}
    assert all(encode_output(output, one)["content"] == [{"type": "text", "text": "[1]"}] for one in REVISIONS)


@pytest.mark.parametrize(
    "icon", ["$(search)", "icon.png", "http://example.org/i.png", "javascript:alert(1)", "file:///i"]
)
def test_an_icon_that_clients_must_refuse_is_not_shown(icon: str) -> None:
    assert "icons" not in describe(tool("a", icon=icon)[0], MODERN)


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_revision_gets_only_the_kinds_of_content_it_knows(revision: str) -> None:
    link, video = Media("image", url="https://example.org/i"), Media("video", "video/mp4", "AAAA", name="a b.mp4")
    lost = Media("file", file_id="file_1", name="x")
    told = encode_output(Output((Text("t"), IMAGE, AUDIO, link, video, lost)), revision)["content"]
    kinds = [part["type"] for part in told]
    assert kinds[:2] == ["text", "image"]
    assert kinds[2] == ("resource" if revision == "2024-11-05" else "audio")
    assert kinds[3] == ("resource_link" if revision >= "2025-06-18" else "text")
    assert kinds[4:] == ["resource", "text"]
    assert told[4]["resource"] == {"uri": "toolgate://output/4/a%20b.mp4", "mimeType": "video/mp4", "blob": "AAAA"}
    assert "file_1" in told[5]["text"]


def test_a_file_from_elsewhere_keeps_its_address() -> None:
    (file,) = encode_output(Output((Media("file", None, "AAAA", name="ui://app/1"),)), MODERN)["content"]
    assert file["resource"] == {"uri": "ui://app/1", "mimeType": "application/octet-stream", "blob": "AAAA"}


@pytest.mark.parametrize("revision", REVISIONS)
def test_results_and_listings_satisfy_the_official_types(revision: str) -> None:
    output = Output((Text("t"), IMAGE, AUDIO, Media("file", None, "AAAA")), True, {"a": 1}, {"x/y": 1})
    result = mcp_types.CallToolResult.model_validate(encode_output(output, revision))
    assert (result.is_error, result.structured_content, result.meta) == (True, {"a": 1}, {"x/y": 1})
    mcp_types.Tool.model_validate(describe(tool("a", display_name="A", icon="data:image/png;base64,AA")[0], revision))


def told(token: Any, level: Any, *progress: Progress) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    telling = Telling(token, level, "tool", heard.append)
    for one in progress:
        telling(one)
    telling.end()
    telling(Progress("too late", 99))
    return heard


@pytest.mark.parametrize("token", ["a", "", 0, 7])
def test_progress_carries_the_clients_own_token(token: Any) -> None:
    (heard,) = told(token, None, Progress("half", 1, 2))
    assert heard["params"] == {"progressToken": token, "progress": 1, "total": 2, "message": "half"}


@pytest.mark.parametrize("token", [None, True, 1.5, {}, []])
def test_without_a_good_token_or_a_level_nothing_is_told(token: Any) -> None:
    assert told(token, None, Progress("half", 1, 2)) == []
    assert told(token, "warning", Progress("half", 1, 2)) == []
    assert [one["method"] for one in told(token, "info", Progress("half"), Progress(done=1))] == [
        "notifications/message"
    ]


@given(
    st.lists(st.builds(Progress, st.none() | st.just("m"), st.none() | st.floats(0, 100), st.none() | st.just(100.0)))
)
def test_progress_always_grows(progress: list[Progress]) -> None:
    values = [one["params"]["progress"] for one in told("t", None, *progress)]
    assert len(values) == len(progress)
    assert all(before < after for before, after in pairwise(values))


async def test_notifications_nobody_reads_are_dropped_and_responses_are_not() -> None:
    outbox = Outbox()
    for number in range(LIMIT + 50):
        outbox.notify({"method": "m", "number": number})
    outbox.respond({"id": 1})
    taken = outbox.take()
    assert (len(taken), taken[-1]) == (LIMIT + 1, {"id": 1})


async def test_changes_while_nobody_waits_are_one_piece_of_news() -> None:
    door = FakeDoor()
    changes = Changes(door.subscribe)
    with changes.listening() as ear:
        door.add(*tool("a"))
        door.add(*tool("b"))
        assert await ear.next()
        waiting = asyncio.ensure_future(ear.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        changes.close()
        assert not await waiting
    assert door.listeners == set()
    with changes.listening() as late:
        assert not await late.next()


def test_a_session_follows_what_its_caller_may_do_now() -> None:
    sessions, before = Sessions(), Caller("me", frozenset(("tools", "admin")))
    id = sessions.open(Peer(before))
    now = Caller("me", frozenset(("tools",)))
    assert id is not None
    assert sessions.find(id, now).caller is now


async def test_a_tool_that_goes_on_telling_after_its_end_is_not_heard() -> None:
    tells: list[Tell] = []

    async def lingers(arguments: Mapping[str, Any], tell: Tell) -> Output:
        tells.append(tell)
        return says("done")

    door, heard = FakeDoor(tool("lingers", lingers)), []
    service = Service(door, Changes(door.subscribe))
    request = Request(1, "tools/call", {"name": "lingers", "_meta": {"progressToken": 1}})
    await service.reply(request, Peer(Caller("me", frozenset())), heard.append, lambda defect: None)
    tells[0](Progress("still here"))
    assert heard == []
