"""Messages of clients of our own MCP server: long texts, many small values, batches, calls with long results."""

import json
from typing import Any

from tests.laws.gateway import Gateway

ACCEPT = "accept: application/json, text/event-stream"
VARIANTS = ("text", "values", "batch", "call", "list", "method")


async def play(gateway: Gateway, kind: str) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    call = {"name": "repeat", "arguments": {"text": "word ", "count": 1_000_000}}
    bodies: dict[str, Any] = {
        "text": {**ping, "params": {"text": "x" * 9_000_000}},
        "values": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"{}," * 3_000_000 + b"0]}}",
        "batch": [ping] * 50_000,
        "call": {**ping, "method": "tools/call", "params": call},
        "list": {**ping, "method": "tools/list"},
        "method": {**ping, "method": "m" * 5_000_000},
    }
    body = bodies[kind]
    await gateway.post("/mcp", body if isinstance(body, bytes) else json.dumps(body).encode(), ACCEPT)
