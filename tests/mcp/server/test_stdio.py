"""The server on stdin and stdout, as clients start it: with the official SDK's client and with bare lines (spec: R8)."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import ImageContent, TextContent

from tests.typed import of

ROOT = Path(__file__).parents[3]
MODULE = "tests.mcp.server.stdio_server"
ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def started(era: str, **options: Any) -> AsyncIterator[Client]:
    command = StdioServerParameters(command=sys.executable, args=["-m", MODULE], cwd=ROOT)
    with tempfile.TemporaryFile("w") as errors:
        async with asyncio.timeout(30), Client(stdio_client(command, errlog=errors), mode=era, **options) as client:
            yield client


@ERAS
async def test_the_sdk_client_finds_over_stdio_what_it_finds_over_http(era: str) -> None:
    received: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total))

    async with started(era) as client:
        assert "test_simple_text" in [one.name for one in (await client.list_tools()).tools]
        image = (await client.call_tool("test_image_content", {})).content[0]
        assert (image.type, of(ImageContent, image).mime_type) == ("image", "image/png")
        failed = await client.call_tool("test_error_handling", {})
        assert failed.is_error
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("nothing", {})
        await client.call_tool("test_tool_with_progress", {}, progress_callback=hear)
    assert received == [(0, 100), (50, 100), (100, 100)]


@ERAS
async def test_a_client_cancels_a_call_by_saying_so(era: str) -> None:
    async with started(era) as client:
        calling = asyncio.ensure_future(client.call_tool("waits", {}))
        await client.call_tool("test_simple_text", {})  # asked later, so by now the other is running
        calling.cancel()
        assert of(TextContent, (await client.call_tool("was_cancelled", {})).content[0]).text == "yes"


async def test_clients_with_and_without_handshake_are_notified_of_changed_tools() -> None:
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with started("legacy", message_handler=hear) as client:
        await client.call_tool("test_trigger_tool_change", {})
        await asyncio.wait_for(changed.wait(), 30)
    async with started("2026-07-28") as client, client.listen(tools_list_changed=True) as subscription:
        await client.call_tool("test_trigger_tool_change", {})
        assert await asyncio.wait_for(anext(subscription), 30) == ToolsListChanged()


async def output(*lines: bytes) -> tuple[list[Any], str]:
    """What the server says to these lines, after which stdin is closed, on stdout and on stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, limit=2**26
    )
    out, errors = await asyncio.wait_for(process.communicate(b"".join(lines)), 30)
    assert process.returncode == 0, errors
    return [msgspec.json.decode(line) for line in out.splitlines()], errors.decode()


def line(method: str, id: Any = 1, **params: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


async def test_requests_with_and_without_handshake_share_one_pipe_and_are_answered_before_its_end() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages, errors = await output(
        line("initialize", 1, **hello),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        b"\n",
        line("ping", 2),
        line("server/discover", 3, _meta=META),
        line("ping", 4, _meta=META),
        line("server/discover", 5),
        line("tools/call", 6, name="test_tool_with_progress", _meta=META),
        line("ping", 2),
    )
    emitted = {one["id"]: one.get("result", one.get("error", {}).get("code")) for one in messages}
    assert emitted[1]["protocolVersion"] == "2025-11-25"
    assert emitted[2] == {}
    assert emitted[3]["supportedVersions"] == ["2026-07-28"]
    assert (emitted[4], emitted[5]) == (-32601, -32602)
    assert emitted[6]["content"][0]["text"] == "counted"
    assert errors == "closed\n"


async def test_a_tool_that_prints_or_reads_does_not_disturb_the_protocol() -> None:
    messages, errors = await output(line("tools/call", 1, name="prints"))
    assert [one["result"]["content"][0]["text"] for one in messages] == ["printed, and stdin is empty"]
    assert "this must not reach the client\nnor this\n" in errors


async def test_lines_that_are_no_messages_are_answered_and_do_no_harm() -> None:
    messages, _ = await output(
        b"{\n",
        b"\xff\n",
        b'"x"\n',
        b"[]\n",
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n',
        b'{"jsonrpc":"2.0","id":8,"method":7}\n',
        b'{"jsonrpc":"2.0","id":9,"result":{}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n',
        line("ping", "last"),
    )
    codes = [(one["id"], one["error"]["code"]) for one in messages if "error" in one]
    assert codes == [
        (None, -32700),
        (None, -32700),
        (None, -32600),
        (None, -32600),
        (None, -32600),
        (8, -32600),
    ]
    assert [one["id"] for one in messages if "result" in one] == ["last"]


async def test_a_line_without_end_is_refused_and_the_next_one_served() -> None:
    messages, _ = await output(b'"' + b"x" * (17 * 1024 * 1024) + b'"\n', line("ping", "after"))
    assert messages[0]["error"]["code"] == -32600
    assert messages[-1] == {"jsonrpc": "2.0", "id": "after", "result": {}}


async def test_input_from_a_file_is_answered_too() -> None:
    with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as answers:
        questions.write(line("ping", 1))
        questions.seek(0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, stdin=questions, stdout=answers, stderr=asyncio.subprocess.DEVNULL, cwd=ROOT
        )
        assert await asyncio.wait_for(process.wait(), 30) == 0
        answers.seek(0)
        assert msgspec.json.decode(answers.read()) == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_at_once_and_closes_what_was_open(number: signal.Signals) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line("tools/call", 1, name="waits") + line("ping", 2))
    await process.stdout.readline()
    process.send_signal(number)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, errors) == (0, b"closed\n")
