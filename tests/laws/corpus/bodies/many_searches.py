"""A history of thousands of searches for tools, each of which would have to be made again."""

import asyncio
import json
from typing import Any

from tests.laws.gateway import Gateway

TOOLS = 300
CALLS = 3_000


async def play(gateway: Gateway) -> None:
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "search_tools", "arguments": _query(number)}}
        for number in range(CALLS)
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "Tools activated."} for call in calls]
    try:
        await gateway.run_tool("pipe_send", form="small", count=TOOLS)
        await _until_listed(gateway, TOOLS)
        gateway.play()
        assert (await gateway.ask_with_tools(messages=messages)).status == 200
    finally:
        await gateway.run_tool("pipe_send", form="small", count=0)
    await _until_listed(gateway, 0)


def _query(number: int) -> str:
    return json.dumps({"query": f"sends as much as asked for by small pipe {number}"})


async def _until_listed(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(60):
        while (await gateway.get("/v1/tools")).body.count(b'"name":"pipe_small_') != count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
