"""What an MCP server may send: bounded in bytes and values, and dealt with in short steps of the event loop."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.client.recording_client import RecordingHttpClient
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving
from tests.mcp.client.sources import calling, mock, noted, opened, source_of, tool
from tests.mcp.client.test_http import handshaking
from toolgate.conversation.message import Text
from toolgate.mcp.client import RemoteServerConfig
from toolgate.mcp.client.session import MAX_TOOLS
from toolgate.mcp.protocol.line_reader import McpReadRateLimit
from toolgate.tools.tool import ToolCallFailed

LONGEST_STEP = 0.05
"""Seconds of processor time that a step of the loop may use."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The processor time of every step of the loop that took more than a millisecond."""
    found: list[float] = []
    run = asyncio.events.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if (used := time.thread_time() - began) > 0.001:
            found.append(used)

    monkeypatch.setattr(asyncio.events.Handle, "_run", measured)
    yield found
    assert max(found, default=0.0) < LONGEST_STEP


async def test_a_list_is_bounded_in_bytes_and_so_is_each_tool(tmp_path: Path) -> None:
    """One tool of 4 MiB a page, without end, took gigabytes."""
    async with opened(source_of(mock("greedy", tmp_path))) as source:
        assert len(noted(tmp_path, "lists")) == 3
        assert source.tools == ()
        assert "tool_0: its definition is larger than 512 KiB" in (source.problem or "")
        assert "a list may have 8192 KiB" in (source.problem or "")


@pytest.mark.parametrize(
    ("count", "schema", "why"),
    [
        (MAX_TOOLS // 2, {"type": "object"}, f"the first {MAX_TOOLS} tools: a list may have {MAX_TOOLS}"),
        (5, {"type": "object", "default": [{}] * 10_000}, "the first 14 tools: a list may have 150000 values"),
        (1, {"type": "object"}, "the first 1000 tools: a list may have 1000 pages"),
    ],
)
async def test_what_a_list_without_end_has_beyond_its_bounds_is_named(count: int, schema: Any, why: str) -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        if asked.message.get("method") != "tools/list":
            return await handshaking(asked)
        page = int((asked.message.get("params") or {}).get("cursor", "0"))
        tools = [{"name": f"tool_{page}_{number}", "inputSchema": schema} for number in range(count)]
        result = {"tools": tools, "nextCursor": str(page + 1)}
        return ScriptedResponse(200, {"jsonrpc": "2.0", "id": asked.message["id"], "result": result})

    async with (
        serving(script) as web,
        opened(source_of(RemoteServerConfig(web.url), http=RecordingHttpClient())) as source,
    ):
        assert f"whatever follows {why}" in (source.problem or "")


async def test_pages_that_repeat_are_named() -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        if asked.message.get("method") != "tools/list":
            return await handshaking(asked)
        result = {"tools": [{"name": "one"}], "nextCursor": "again"}
        return ScriptedResponse(200, {"jsonrpc": "2.0", "id": asked.message["id"], "result": result})

    async with (
        serving(script) as web,
        opened(source_of(RemoteServerConfig(web.url), http=RecordingHttpClient())) as source,
    ):
        assert "the pages repeat" in (source.problem or "")


async def test_many_messages_at_once_are_dealt_with_in_short_steps(tmp_path: Path, steps: list[float]) -> None:
    async with opened(source_of(mock("crowded", tmp_path))) as source:
        assert (await tool(source).invoke(calling())).content


async def test_a_large_result_is_read_off_the_loop(tmp_path: Path, steps: list[float]) -> None:
    async with opened(source_of(mock("blocks", tmp_path))) as source:
        assert len((await tool(source).invoke(calling())).content) == 40_000


async def test_an_answer_of_too_many_values_fails_its_call_before_it_is_decoded(
    tmp_path: Path, steps: list[float]
) -> None:
    async with opened(source_of(mock("dense", tmp_path))) as source:
        with pytest.raises(ToolCallFailed, match="holds more than"):
            await tool(source).invoke(calling())
        assert source.tools


async def test_an_answer_may_be_nested_512_levels_deep(tmp_path: Path) -> None:
    async with opened(source_of(mock("deep_512", tmp_path))) as source:
        assert (await tool(source).invoke(calling())).content == (Text("[" * 510 + "]" * 510),)


@pytest.mark.parametrize("levels", [513, 971, 5_000])
async def test_a_deeper_answer_fails_its_call_at_once(tmp_path: Path, levels: int) -> None:
    async with opened(source_of(mock(f"deep_{levels}", tmp_path))) as source:
        with pytest.raises(ToolCallFailed, match="the answer is nested deeper than 512 levels"):
            await tool(source).invoke(calling())
        assert source.tools


def deep(levels: int) -> list[Any]:
    return [deep(levels - 1)] if levels > 1 else []


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"content": [], "structuredContent": deep(600)}, "the answer is nested deeper than 512 levels"),
        ({"content": [{"type": "text", "text": "x" * 5_000_000}]}, "larger than 4 MiB"),
        ({"content": [], "x": [[]] * 1_000_000}, "holds more than"),
    ],
)
async def test_an_address_has_the_bounds_of_a_pipe(result: Any, why: str) -> None:
    async def script(asked: ReceivedRequest) -> ScriptedResponse:
        if asked.message.get("method") == "tools/call":
            return ScriptedResponse(200, {"jsonrpc": "2.0", "id": asked.message["id"], "result": result})
        return await handshaking(asked)

    async with (
        serving(script) as web,
        opened(source_of(RemoteServerConfig(web.url), http=RecordingHttpClient())) as source,
    ):
        with pytest.raises(ToolCallFailed, match=why):
            await tool(source).invoke(calling())


def test_a_flood_is_measured_in_bytes_too() -> None:
    now = [0.0]
    measure = McpReadRateLimit(lambda: now[0], per_second=10, bytes_per_second=1000)
    assert measure.pause(1, 1000) == 0.0
    assert measure.pause(1, 1) == 1.0
    now[0] = 1.0
    assert measure.pause(1, 1) == 0.0
