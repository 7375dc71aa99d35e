"""Thousands of server tools that are listed, and offered to a model."""

import json

from tests.laws.gateway import Gateway, call_answer, chat_answer

TOOL = {"description": "Does something.", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


async def play(gateway: Gateway) -> None:
    tools = gateway.place / "tools.json"
    tools.write_text(json.dumps([{"name": f"tool_{number}", **TOOL} for number in range(900)]))
    plain = gateway.configuration()
    server = {**plain["tools"]["mcp"]["pipe"], "env": {"MCP_TOOLS": str(tools)}}
    many = {f"pipe{number}": server for number in range(3)}
    await gateway.reload(json.dumps({**plain, "tools": {**plain["tools"], "mcp": many}}))
    try:
        await gateway.get("/v1/tools")
        gateway.play(call_answer("repeat", {"text": "x"}), chat_answer())
        assert (await gateway.ask_with_tools()).status == 200
    finally:
        await gateway.reload()
