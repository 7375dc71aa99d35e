"""As many tools of an MCP server as are accepted, all of whose definitions change, so that a person must accept them."""

import asyncio
import secrets

from tests.laws.gateway import Gateway
from toolgate.mcp.client.session import MAX_TOOLS

COUNTS = {"tools": MAX_TOOLS - 1, "schemas": 50}  # and the tool that changes them
VARIANTS = tuple(COUNTS)


async def play(gateway: Gateway, kind: str) -> None:
    name, count = f"t{secrets.token_hex(4)}", COUNTS[kind]
    try:
        await gateway.run_tool("pinned_send", form="changed", text=name, count=count)
        await _until_listed(gateway, f'"name":"pinned_{name}_', count)
        await gateway.run_tool("pinned_send", form="changed", text=name, count=count)
        await _until_listed(gateway, f'"name":"{name}_', 3 * count)  # in both definitions, too
        assert (await gateway.post(f"/v1/tools/pinned_{name}_0/accept", {})).status == 200
    finally:
        await gateway.run_tool("pinned_send", form="changed", count=0)
    await _until_listed(gateway, f"{name}_", 0)


async def _until_listed(gateway: Gateway, text: str, count: int) -> None:
    async with asyncio.timeout(60):
        while (await gateway.get("/v1/tools")).body.count(text.encode()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
