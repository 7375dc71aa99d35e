"""A list of an MCP server whose tools all have the largest schemas that are accepted."""

import asyncio
import secrets

from tests.laws.gateway import Gateway

TOOLS = 15


async def play(gateway: Gateway) -> None:
    try:
        await gateway.run_tool("pipe_send", form="offer", text=secrets.token_hex(4), count=TOOLS)
        await _until_offered(gateway, TOOLS)
    finally:
        await gateway.run_tool("pipe_send", form="offer", count=0)
    await _until_offered(gateway, 0)


async def _until_offered(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(30):
        while not await _offers(gateway, count):  # noqa: ASYNC110 - nothing is sent when the list changes
            await asyncio.sleep(0.2)


async def _offers(gateway: Gateway, count: int) -> bool:
    response = await gateway.get("/v1/tools?name=pipe_large_*")
    return response.body.count(b'"name":"pipe_large_') == count
