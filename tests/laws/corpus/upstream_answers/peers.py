"""Frames of a peer behind a WebSocket: long deltas, thousands of small ones, unknown ones, pings, deep and broken ones."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.laws.gateway import Gateway

MOST = 1_000_000
FRAMES = {
    "long": [json.dumps({"type": "delta", "id": "{}", "text": "x" * MOST})] * 6,
    "escapes": [json.dumps({"type": "delta", "id": "{}", "text": "\x01" * (MOST // 6)})] * 8,
    "small": [json.dumps({"type": "delta", "id": "{}", "text": "x"})] * 20_000,
    "unknown": [json.dumps({"type": "new", "id": "{}", "more": [[]] * 200_000})] * 4,
    "pings": [json.dumps({"type": "ping"})] * 20_000,
    "deep": ["[" * MOST],
    "keys": ["{" + ",".join([f'"k{number}":0' for number in range(90_000)]) + "}"] * 4,
    "error": [json.dumps({"type": "error", "id": "{}", "code": "x" * 400_000, "message": "x" * 400_000})],
    "usage": ['{"type":"done","id":"{}","usage":{"input":' + "9" * 900_000 + ',"output":1}}'],
}
VARIANTS = tuple(FRAMES)


async def received(socket: ServerConnection) -> AsyncIterator[str | bytes]:
    with suppress(ConnectionClosed):  # what is no frame ends the connection
        async for message in socket:
            yield message


async def play(gateway: Gateway, kind: str) -> None:
    async def converse(socket: ServerConnection) -> None:
        async for message in received(socket):
            asked = json.loads(message)
            if asked["type"] == "hello":
                await socket.send(json.dumps({"type": "welcome", "protocol": 1}))
            elif asked["type"] == "create_conversation":
                await socket.send(json.dumps({"type": "conversation_created", "id": asked["id"], "conversation": "c"}))
            elif asked["type"] == "send_message":
                for frame in FRAMES[kind]:
                    await socket.send(frame.replace("{}", asked["id"]))
                await socket.send(json.dumps({"type": "delta", "id": asked["id"], "text": "Done."}))
                await socket.send(json.dumps({"type": "done", "id": asked["id"]}))

    plain = gateway.configuration()
    async with serve(converse, "127.0.0.1", 0, max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        upstreams = {**plain["upstreams"], "peer": {"dialect": "peer", "base_url": f"ws://127.0.0.1:{port}"}}
        models = [*plain["models"], {"name": "peer", "upstream": "peer", "retries": 0}]
        assert '"reloaded"' in await gateway.reload(json.dumps({**plain, "upstreams": upstreams, "models": models}))
        try:
            for stream in (False, True):
                answer = await gateway.ask("openai_chat", "peer", f"Hi {stream}", stream=stream)
                assert answer.status == (502 if kind in ("deep", "keys", "error", "usage") else 200), answer
        finally:
            await gateway.reload()
