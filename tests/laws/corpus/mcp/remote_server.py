"""Answers of an MCP server over HTTP, whole and streamed: long texts, many parts, lists, floods of notifications."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.laws.gateway import Gateway, call_answer, chat_answer
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving

TOOL = {"name": "say", "inputSchema": {"type": "object"}}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
CONTENT: dict[str, list[dict[str, Any]]] = {
    "text": [{"type": "text", "text": "word " * 700_000}],
    "escapes": [{"type": "text", "text": "\x01" * 600_000}],
    "parts": [{"type": "text", "text": "x"}] * 40_000,
    "values": [{"type": "text", "text": "x", "_meta": {"a": [[]] * 140_000}}],
    "pictures": [{"type": "image", "data": "A" * 3_000_000, "mimeType": "image/png"}],
    "notes": [{"type": "text", "text": "x"}],
}
VARIANTS = (*[f"{kind}-{form}" for kind in CONTENT for form in ("whole", "streamed")], "list-whole", "schemas-whole")


def tools(kind: str) -> list[dict[str, Any]]:
    """The list: usually one tool, or as many as there may be, or some whose schemas are large."""
    if kind == "list":
        return [TOOL, *[{**TOOL, "name": f"more_{number}"} for number in range(4_900)]]
    schema = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(1_000)}}
    return [
        TOOL,
        *[{"name": f"more_{number}", "inputSchema": schema} for number in range(20 if kind == "schemas" else 0)],
    ]


async def play(gateway: Gateway, variant: str) -> None:
    kind, form = variant.split("-")

    async def answer(request: ReceivedRequest) -> ScriptedResponse:
        message = request.message
        results: dict[Any, dict[str, Any]] = {
            "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
            "tools/list": {"tools": tools(kind)},
            "tools/call": {"content": CONTENT.get(kind, CONTENT["notes"])},
        }
        result = results.get(message.get("method"))
        if result is None:
            return ScriptedResponse(404)
        whole = {"jsonrpc": "2.0", "id": message.get("id"), "result": {"resultType": "complete", **result}}

        async def stream() -> AsyncIterator[Any]:
            for _ in range(20_000 if kind == "notes" else 0):
                yield NOTE
            yield whole

        called = message.get("method") == "tools/call"
        return ScriptedResponse(200, events=stream()) if called and form == "streamed" else ScriptedResponse(200, whole)

    async with serving(answer) as server:
        registered = await gateway.post("/v1/tools", {"type": "mcp", "name": "remote", "url": server.url})
        assert registered.status == 201, registered.body
        try:
            async with asyncio.timeout(60):
                while b'"name":"remote_say"' not in (await gateway.get("/v1/tools?name=remote_*")).body:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            gateway.play(call_answer("remote_say", {}), chat_answer())
            assert b"Done." in (await gateway.ask_with_tools()).body
        finally:
            await gateway.request("DELETE", "/v1/tools/remote")
