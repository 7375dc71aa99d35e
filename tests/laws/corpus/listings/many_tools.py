"""Thousands of server tools that are listed, and offered to a model."""

import asyncio

from tests.laws.gateway import Gateway, call_answer, chat_answer, size

TOOLS = size(900, 1_000)


async def play(gateway: Gateway) -> None:
    try:
        await gateway.run_tool("pipe_send", form="small", count=TOOLS)
        await _until_listed(gateway, TOOLS)
        gateway.play(call_answer("repeat", {"text": "x"}), chat_answer())
        assert (await gateway.ask_with_tools()).status == 200
    finally:
        await gateway.run_tool("pipe_send", form="small", count=0)
    await _until_listed(gateway, 0)


async def _until_listed(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(60):
        while (await gateway.get("/v1/tools")).body.count(b'"name":"pipe_small_') != count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
