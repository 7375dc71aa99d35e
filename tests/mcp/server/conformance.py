"""The tools that the official conformance suite wants to find, on a port of one's choice, until it is interrupted.

python -m tests.mcp.server.conformance 8901
"""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from tests.mcp.server.fake_catalog import FakeToolCatalog, serving, text_output, tool
from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import CallProgressUpdate, ReportProgress, ToolCallFailed, ToolOutput

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
PAPER = "VGhpcyBpcyBhbiBlbWJlZGRlZCByZXNvdXJjZSBjb250ZW50Lg=="

IMAGE = Media("image", "image/png", PIXEL)
AUDIO = Media("audio", "audio/wav", SOUND)
FILE = Media("file", "text/plain", PAPER, name="note.txt")

ADDRESS = {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
MIRRORED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def counts(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
    for done in (0, 50, 100):
        report_progress(CallProgressUpdate(done=done, total=100))
        await asyncio.sleep(0.05)
    return text_output("counted")


async def chats(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        report_progress(CallProgressUpdate(message))
        await asyncio.sleep(0.05)
    return text_output("chatted")


async def fails(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
    raise ToolCallFailed("This tool intentionally returns an error for testing")


def conformance_catalog() -> FakeToolCatalog:
    """Every tool the suite calls, save those that would ask the client for something."""

    async def change(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        made.add(*tool(f"made_{len(made.all)}"))
        return text_output("changed")

    made = FakeToolCatalog(
        tool("test_simple_text", "This is a simple text response for testing."),
        tool("test_image_content", ToolOutput((IMAGE,))),
        tool("test_audio_content", ToolOutput((AUDIO,))),
        tool("test_embedded_resource", ToolOutput((FILE,))),
        tool("test_multiple_content_types", ToolOutput((Text("Multiple content types test:"), IMAGE, FILE))),
        tool("test_tool_with_logging", chats),
        tool("test_logging_tool", chats),
        tool("test_tool_with_progress", counts),
        tool("test_error_handling", fails),
        tool("json_schema_2020_12_tool", input_schema=SCHEMA),
        tool("test_x_mcp_header", input_schema=MIRRORED),
        tool("test_trigger_tool_change", change),
    )
    return made


async def main(port: int) -> None:
    async with serving(conformance_catalog(), port=port, seconds=None) as url:
        print(f"{url}/mcp", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1])))
