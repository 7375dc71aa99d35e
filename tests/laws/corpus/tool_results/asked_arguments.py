"""Calls with the longest arguments that a person is asked about: as they are asked, listed, shown, edited and approved."""

import asyncio
import json
import secrets
from typing import Any

from tests.laws.gateway import Gateway, size

ACCEPT = "accept: application/json, text/event-stream"
QUESTIONS = size(3, 8)
VARIANTS = ("scripts", "objects", "escapes")


async def play(gateway: Gateway, kind: str) -> None:
    text = {"scripts": "p\u0430ypal\u4e2d " * 30_000, "objects": "", "escapes": "\u202e" * 80_000}[kind]
    more: dict[str, Any] = {"rows": [{"": {}}] * 25_000} if kind == "objects" else {}

    mark = secrets.token_hex(8)  # a call that was denied once is not asked about again

    async def ask(number: int) -> None:
        params = {"name": "harmful", "arguments": {"text": f"{mark} {number} {text}", **more}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        response = await gateway.post("/mcp", json.dumps(message, ensure_ascii=False).encode(), ACCEPT)
        assert b"waits for approval" in response.body, response.body[:500]

    await asyncio.gather(*[ask(number) for number in range(QUESTIONS)])
    pending = (await gateway.get("/v1/approvals?state=pending&limit=100")).json["data"]
    assert pending
    place = f"/v1/approvals/{pending[0]['id']}"
    await gateway.get(place)
    edited = {"decision": "approve", "arguments": {"text": text, **more}}
    assert (await gateway.post(place, json.dumps(edited, ensure_ascii=False).encode())).status == 200
    await gateway.post("/v1/approvals/deny_all", {})
    await gateway.post("/v1/approvals/reset", {})
