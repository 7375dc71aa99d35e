"""A server of the Responses API over WebSockets in the test's loop, and a client for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.stage import QUIET, Player, upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config
from toolgate.http.listener import Listener
from toolgate.http.request_limits import RequestLimits
from toolgate.testing import Entry, ScriptedModel
from toolgate.tools.tool import ToolSource

HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class WebSocketServer:
    """The server, its script and its URL."""

    def __init__(self, listener: Listener, gate: Toolgate, player: Player) -> None:
        self.listener = listener
        self.gate = gate
        self.url = listener.url
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Set the model's script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    @asynccontextmanager
    async def socket(self, key: str | None = None, **options: Any) -> AsyncIterator["WebSocketClient"]:
        """Open a WebSocket."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = self.url.replace("http", "ws") + "/v1/responses"
        async with connect(
            url, additional_headers=headers, ping_interval=None, max_size=None, proxy=None, **options
        ) as opened:
            yield WebSocketClient(opened)


class WebSocketClient:
    """One WebSocket that sends and receives events."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **event: Any) -> None:
        """Send an event."""
        await self.connection.send(msgspec.json.encode(event).decode())

    async def create(self, **request: Any) -> None:
        """Request a response."""
        await self.send(type="response.create", **{"model": "played", "input": "Hi", "store": False, **request})

    async def receive(self) -> dict[str, Any]:
        """Return the next event."""
        async with asyncio.timeout(30):
            event: dict[str, Any] = msgspec.json.decode(await self.connection.recv())
        return event

    async def receive_all(self) -> list[dict[str, Any]]:
        """Return the events up to the end of a response, or up to an error outside of one."""
        events = [await self.receive()]
        while events[-1]["type"] not in TERMINAL and "status" not in events[-1]:
            events.append(await self.receive())
        return events

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the whole response, or the error."""
        await self.create(**request)
        last = (await self.receive_all())[-1]
        response: dict[str, Any] = last.get("response", last)
        return response

    async def close_code(self) -> int | None:
        """Wait until the server has closed, and return its close code."""
        async with asyncio.timeout(30):
            await self.connection.wait_closed()
        return self.connection.close_code


def text_of(response: dict[str, Any]) -> str:
    """Return the text of a response."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


@asynccontextmanager
async def websocket_server(
    *sources: ToolSource, config: Config | None = None, drain_seconds: float = 0.0, **limits: Any
) -> AsyncIterator[WebSocketServer]:
    """Serve until the block ends; `limits` are those of the listener."""
    player = Player()
    gate = Toolgate(config or upstream_config(), {"played": player}, sources)
    listener = Listener(
        gate, limits=RequestLimits(**limits), encode_error=gate.refuse, drain_seconds=drain_seconds, on_drain=gate.drain
    )
    await listener.open()
    try:
        yield WebSocketServer(listener, gate, player)
    finally:
        await listener.close()


def with_keys(*keys: Any, **changes: Any) -> Config:
    """Return the configuration of a server with keys."""
    base = upstream_config()
    return Config(server=base.server, models=base.models, storage=base.storage, log=QUIET, keys=keys, **changes)
