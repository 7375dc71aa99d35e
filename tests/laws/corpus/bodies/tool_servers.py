"""Requests that name tool servers, their toolsets and their tools by the thousand, over thousands of server tools."""

import asyncio
from typing import Any

from tests.laws.gateway import PATHS, Gateway, size

NAMES = [f"name_{number}" for number in range(90_000)]
NEVER = {"never": {"tool_names": NAMES[:45_000]}}
MESSAGES = {"max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
MCP = {"type": "mcp", "server_label": "toolgate", "require_approval": "never"}


def toolsets(label: str) -> dict[str, Any]:
    tools = [{"type": "mcp_toolset", "mcp_server_name": f"{label}_{number}"} for number in range(5_000)]
    return {**MESSAGES, "tools": tools, "mcp_servers": [{"type": "url", "name": label, "n": n} for n in range(5_000)]}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "allowed": ("openai_responses", {"input": "Hi", "tools": [{**MCP, "allowed_tools": NAMES}]}),
    "exempt": ("openai_responses", {"input": "Hi", "tools": [{**MCP, "require_approval": NEVER}]}),
    "repeated": ("openai_responses", {"input": "Hi", "tools": [MCP] * 10_000}),
    "unknown": ("openai_responses", {"input": "Hi", "tools": [{**MCP, "server_label": "x"}] * 10_000}),
    "toolsets": ("anthropic", toolsets("toolgate")),
    "unknown toolsets": ("anthropic", toolsets("x")),
}
VARIANTS = tuple(REQUESTS)


async def play(gateway: Gateway, kind: str) -> None:
    count = size(1_000, 4_000)
    await offer(gateway, count)
    try:
        gateway.play()
        dialect, body = REQUESTS[kind]
        answer = await gateway.post(PATHS[dialect], {"model": "openai_chat", **body})
        assert answer.status == (200 if kind in ("allowed", "exempt") else 400), answer.body
    finally:
        await offer(gateway, 0)


async def offer(gateway: Gateway, count: int) -> None:
    assert (await gateway.run_tool("pipe_send", form="small", count=count)).status == 200
    async with asyncio.timeout(60):
        while (await gateway.get("/v1/tools")).body.count(b'"name":"pipe_small_') != count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
