"""A server that speaks Responses over WebSockets, in the loop of the test, and clients that say what they like to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.stage import QUIET, Player, upstream_config
from toolgate.config import Config
from toolgate.server.build import Toolgate
from toolgate.server.edge.head import Limits
from toolgate.server.edge.listen import Listener
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource

HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class Place:
    """The server, its script, and the way in."""

    def __init__(self, listener: Listener, gate: Toolgate, player: Player) -> None:
        self.listener = listener
        self.gate = gate
        self.url = listener.url
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    @asynccontextmanager
    async def socket(self, key: str | None = None, **options: Any) -> AsyncIterator["Speaker"]:
        """An open WebSocket."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = self.url.replace("http", "ws") + "/v1/responses"
        async with connect(
            url, additional_headers=headers, ping_interval=None, max_size=None, proxy=None, **options
        ) as opened:
            yield Speaker(opened)


class Speaker:
    """One WebSocket, spoken to in events."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **event: Any) -> None:
        """Send an event."""
        await self.connection.send(msgspec.json.encode(event).decode())

    async def create(self, **request: Any) -> None:
        """Ask for a response."""
        await self.send(type="response.create", **{"model": "played", "input": "Hi", "store": False, **request})

    async def hear(self) -> dict[str, Any]:
        """The next event."""
        async with asyncio.timeout(10):
            event: dict[str, Any] = msgspec.json.decode(await self.connection.recv())
        return event

    async def hear_all(self) -> list[dict[str, Any]]:
        """Events up to the end of a response, or an error that is no part of one."""
        events = [await self.hear()]
        while events[-1]["type"] not in TERMINAL and "status" not in events[-1]:
            events.append(await self.hear())
        return events

    async def ask(self, **request: Any) -> dict[str, Any]:
        """The whole response to a request, or the error."""
        await self.create(**request)
        last = (await self.hear_all())[-1]
        response: dict[str, Any] = last.get("response", last)
        return response

    async def farewell(self) -> int | None:
        """The code that the server closes with, once it has."""
        async with asyncio.timeout(10):
            await self.connection.wait_closed()
        return self.connection.close_code


def text_of(response: dict[str, Any]) -> str:
    """What a response says."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


@asynccontextmanager
async def speaking(
    *sources: ToolSource, config: Config | None = None, drain_seconds: float = 0.0, **limits: Any
) -> AsyncIterator[Place]:
    """Serve until the block ends; `limits` are those of the edge."""
    player = Player()
    gate = Toolgate(config or upstream_config(), {"played": player}, sources)
    listener = Listener(
        gate, limits=Limits(**limits), refuse=gate.refuse, drain_seconds=drain_seconds, on_drain=gate.drain
    )
    await listener.open()
    try:
        yield Place(listener, gate, player)
    finally:
        await listener.close()


def with_keys(*keys: Any, **changes: Any) -> Config:
    """The configuration of a server that wants keys."""
    base = upstream_config()
    return Config(server=base.server, models=base.models, storage=base.storage, log=QUIET, keys=keys, **changes)
