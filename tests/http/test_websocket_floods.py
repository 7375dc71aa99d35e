"""WebSocket frames that cost more to read than to send: the loop goes on, and abuse is closed (fault: C12)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.http_client import HttpConnection
from tests.http.test_websocket import CREATE, MORE, PING, PONG, TEXT, Wire, frame
from tests.http.websocket_server import WebSocketServer, text_of, websocket_server
from tests.tools.execution.steps import measured_steps
from toolgate.http.websocket import WebSocket

FLOODS = {
    "empty messages": (b"", frame(TEXT, b"")),
    "tiny messages": (b"", frame(TEXT, b"{}")),
    "empty pings": (b"", frame(PING, b"")),
    "full pings": (b"", frame(PING, b"x" * 125)),
    "pongs": (b"", frame(PONG, b"")),
    "empty continuations": (frame(0x01, b"{"), frame(0x00, b"")),
    "tiny continuations": (frame(0x01, b"{"), frame(0x00, b" ")),
    "pings between continuations": (frame(0x01, b"{"), frame(0x00, b"") + frame(PING, b"")),
}
FLOOD = 40_000  # frames: ten times what is allowed at once


@pytest.fixture
async def server() -> AsyncIterator[WebSocketServer]:
    async with websocket_server() as server:
        yield server


async def send_all(wire: Wire, data: bytes) -> None:
    """Send as much of it as the server takes, reading nothing."""
    try:
        wire.writer.write(data)
        await wire.writer.drain()
    except ConnectionError:
        pass


@pytest.mark.parametrize(("first", "frames"), FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_of_small_frames_is_read_in_steps_and_closed(
    first: bytes, frames: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    read, take = WebSocket._read, WebSocket._handle

    def counted_turn(socket: WebSocket) -> None:
        turns.append(0)
        read(socket)

    def counted_frame(socket: WebSocket, one: Any) -> None:
        turns[-1] += 1
        take(socket, one)

    monkeypatch.setattr(WebSocket, "_read", counted_turn)
    monkeypatch.setattr(WebSocket, "_handle", counted_frame)
    flood = first + frames * FLOOD
    async with websocket_server() as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        with measured_steps() as steps:
            sending = asyncio.create_task(send_all(wire, flood))
            async with asyncio.timeout(30):
                code = await closing_code(wire)
            await sending
        assert code == 1008
        assert max(turns) < 500  # frames in one turn of the loop
        assert steps.longest < 0.05, steps.what


async def closing_code(wire: Wire) -> int:
    while True:
        first, payload = await wire.next()
        if first == 0x88:
            return int.from_bytes(payload[:2], "big")


async def test_messages_that_wait_are_bounded_in_number(
    server: WebSocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty messages are no bytes, but they are messages."""
    waiting: list[int] = []
    deliver = WebSocket._deliver

    def counted(socket: WebSocket, message: bytes) -> None:
        deliver(socket, message)
        waiting.append(len(socket._messages))

    monkeypatch.setattr(WebSocket, "_deliver", counted)
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.writer.write(frame(TEXT, b"") * 1500)
        for _ in range(1500):
            assert b"error" in (await wire.next())[1]
    assert len(waiting) == 1500
    assert max(waiting) < 300


async def test_a_few_pings_and_fragments_are_no_abuse(server: WebSocketServer) -> None:
    server.play("Hello.")
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.writer.write(frame(PING, b"") * 200 + frame(0x01, CREATE[:1]))
        for byte in CREATE[1:-1]:
            wire.writer.write(frame(0x00, bytes([byte])))
        wire.writer.write(frame(MORE, CREATE[-1:]))
        for _ in range(200):
            assert await wire.next() == (PONG, b"")
        assert text_of(await wire.answer()) == "Hello."
