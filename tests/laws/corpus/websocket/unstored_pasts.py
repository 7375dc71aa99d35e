"""Responses on a WebSocket that continue megabytes of characters that JSON escapes, none of which was stored before."""

import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.laws.gateway import KEY, Gateway, size

ESCAPED = '"' * size(2_000_000, 3_900_000)
VARIANTS = ("unstored", "stored")


async def respond(socket: ClientConnection, **fields: Any) -> str:
    await socket.send(json.dumps({"type": "response.create", "model": "openai_chat", "input": ESCAPED, **fields}))
    while (event := json.loads(await socket.recv()))["type"] != "response.completed":
        assert event["type"] != "error", event
    return str(event["response"]["id"])


async def play(gateway: Gateway, last: str) -> None:
    address, headers = f"ws://127.0.0.1:{gateway.port}/v1/responses", {"authorization": f"Bearer {KEY}"}
    async with connect(address, additional_headers=headers, max_size=None, proxy=None) as socket:
        first = await respond(socket, store=False)
        second = await respond(socket, store=False, previous_response_id=first)
        third = await respond(socket, store=last == "stored", previous_response_id=second)
    listed = await gateway.get(f"/v1/responses/{third}/input_items?limit=1")
    assert listed.status == (200 if last == "stored" else 404)
