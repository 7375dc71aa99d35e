"""What a peer sends at once is parsed in slices, all of it, and also what it sent right before it closed the connection."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.client import ClientProtocol
from websockets.utils import accept_key

from tests.upstreams.transport.faulty import on_both_loops
from toolgate.upstreams.stateful_chat.sliced_connection import SLICE
from toolgate.upstreams.stateful_chat.websocket import (
    StatefulChatConnectionLost,
    StatefulChatUrl,
    StatefulChatWebSocket,
    open_websocket,
)

PING = b"\x89\x00"
MESSAGES = 3_000


def message(number: int) -> bytes:
    """Encode a text frame."""
    text = f"message {number:06}".encode()
    return bytes([0x81, len(text)]) + text


@asynccontextmanager
async def open_to(sent: bytes) -> AsyncIterator[StatefulChatWebSocket]:
    """Connect to a peer that accepts, sends this and ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [key] = re.findall(r"(?i)sec-websocket-key: (\S+)", head.decode())
        answer = (
            f"HTTP/1.1 101 Go\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {accept_key(key)}"
        )
        writer.write(answer.encode() + b"\r\n\r\n" + sent)
        writer.write_eof()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    socket = await open_websocket(StatefulChatUrl.of(f"ws://127.0.0.1:{port}/"), {}, 30.0, 1 << 20)
    try:
        yield socket
    finally:
        await socket.aclose()
        server.close()
        await server.wait_closed()


@on_both_loops
async def test_everything_before_the_end_of_a_connection_is_received() -> None:
    async with asyncio.timeout(60), open_to(b"".join([message(number) for number in range(MESSAGES)])) as socket:
        for number in range(MESSAGES):
            assert await socket.receive() == f"message {number:06}"
        with pytest.raises(StatefulChatConnectionLost, match="broke off the connection"):
            await socket.receive()


@on_both_loops
async def test_pings_that_come_at_once_are_parsed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = ClientProtocol.receive_data

    def receive_data(self: ClientProtocol, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(ClientProtocol, "receive_data", receive_data)
    async with asyncio.timeout(60), open_to(PING * 50_000 + message(1)) as socket:
        assert await socket.receive() == "message 000001"
    assert sum(sizes) > 100_000
    assert max(sizes) <= SLICE
