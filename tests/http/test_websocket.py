"""WebSockets at the edge: who gets one, and what may be sent on it (fault: C12)."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.api.http_client import HttpConnection
from tests.api.responses.stateful import until
from tests.http.websocket_server import HANDSHAKE, WebSocketServer, text_of, websocket_server, with_keys
from toolgate.config import KeySettings, Secret
from toolgate.http.websocket import WebSocket, WebSocketTimeouts

CREATE = b'{"type":"response.create","model":"played","input":"Hi","store":false}'
TEXT, BINARY, CLOSE, PING, PONG, MORE = 0x81, 0x82, 0x88, 0x89, 0x8A, 0x80
ANN = KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",))
NO_CHAT = KeySettings(name="tim", key=Secret("tim-key"), scopes=("tools",))


def frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    """A frame as a client writes it."""
    bit, size = 0x80 if masked else 0, len(payload)
    if size < 126:
        head = bytes([first, bit | size])
    elif size < 0x10000:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    return head + (b"\0\0\0\0" if masked else b"") + payload


class Wire:
    """A WebSocket in bytes."""

    def __init__(self, caller: HttpConnection) -> None:
        self.reader, self.writer = caller.reader, caller.writer

    async def shake(
        self, server: WebSocketServer, *headers: str, handshake: tuple[str, ...] = HANDSHAKE, **line: str
    ) -> int:
        """Send a handshake; the status of the answer, whose headers are kept."""
        method, path = line.get("method", "GET"), line.get("path", "/v1/responses")
        version, host = line.get("version", "1.1"), line.get("host", server.url[7:])
        lines = [f"{method} {path} HTTP/{version}", f"Host: {host}", *handshake, *headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        self.headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:])}
        return int(head[0].split()[1])

    async def body(self) -> Any:
        """The body of an answer that refused."""
        return msgspec.json.decode(await self.reader.readexactly(int(self.headers["content-length"])))

    async def next(self) -> tuple[int, bytes]:
        """The next frame: its first byte and payload."""
        async with asyncio.timeout(30):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first, await self.reader.readexactly(size)

    async def close_code(self) -> int:
        """The code of the close frame, which must be the last thing sent."""
        first, payload = await self.next()
        while first != CLOSE:
            first, payload = await self.next()
        async with asyncio.timeout(30):
            assert await self.reader.read() == b""
        return int.from_bytes(payload[:2], "big")

    async def answer(self) -> dict[str, Any]:
        """The response that comes."""
        while True:
            first, payload = await self.next()
            event = msgspec.json.decode(payload)
            assert first == TEXT
            if event["type"] == "response.completed":
                response: dict[str, Any] = event["response"]
                return response


@pytest.fixture
async def server() -> AsyncIterator[WebSocketServer]:
    async with websocket_server(body_bytes=64 * 1024) as server:
        yield server


@pytest.fixture
async def wire(server: WebSocketServer) -> AsyncIterator[Wire]:
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server) == 101
        yield wire


async def test_a_handshake_is_answered_as_the_rfc_wants_without_extensions(server: WebSocketServer) -> None:
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server, "Sec-WebSocket-Extensions: permessage-deflate") == 101
        assert wire.headers["sec-websocket-accept"] == "ICX+Yqv66kxgM0FcWaLWlFLwTAI="
        assert wire.headers["x-request-id"]
        assert "sec-websocket-extensions" not in wire.headers


@pytest.mark.parametrize("size", [1, 3, 7, 50])
async def test_where_the_bytes_of_a_message_are_split_changes_nothing(
    server: WebSocketServer, wire: Wire, size: int
) -> None:
    server.play("Hello.")
    data = frame(TEXT, CREATE)
    for start in range(0, len(data), size):
        wire.writer.write(data[start : start + size])
        await wire.writer.drain()
        await asyncio.sleep(0)
    assert text_of(await wire.answer()) == "Hello."


async def test_a_message_may_come_in_fragments_with_pings_between_them(server: WebSocketServer, wire: Wire) -> None:
    server.play("Hello.")
    wire.writer.write(frame(0x01, CREATE[:10]) + frame(PING, b"well?") + frame(0x00, b"") + frame(0x00, CREATE[10:30]))
    wire.writer.write(frame(MORE, CREATE[30:]))
    assert await wire.next() == (PONG, b"well?")
    assert text_of(await wire.answer()) == "Hello."


async def test_a_message_as_large_as_a_body_may_be_is_taken(server: WebSocketServer, wire: Wire) -> None:
    server.play("Hello.")
    wire.writer.write(frame(TEXT, CREATE[:-1] + b" " * (64 * 1024 - len(CREATE)) + b"}"))
    assert text_of(await wire.answer()) == "Hello."


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536, 200_000])
async def test_a_message_of_any_size_is_framed_as_the_rfc_wants(server: WebSocketServer, wire: Wire, size: int) -> None:
    (connection,) = server.listener.connections()
    socket = connection._upgraded
    assert isinstance(socket, WebSocket)
    socket.write(b"x" * size)
    assert await wire.next() == (TEXT, b"x" * size)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b" " * (64 * 1024 + 1)), 1009),
        (frame(0x01, b" " * 64 * 1024) + frame(0x00, b"  "), 1009),
        (frame(BINARY, b"{}"), 1003),
        (frame(TEXT, b'"\xff"'), 1007),
        (frame(TEXT, b"{}", masked=False), 1002),
        (frame(MORE, b"{}"), 1002),
        (frame(0x01, b"{") + frame(TEXT, b"{}"), 1002),
        (frame(0xC1, b"{}"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(CLOSE, b"\x03\xe8"), 1000),
    ],
    ids=[
        "too large",
        "too large in fragments",
        "binary",
        "not UTF-8",
        "not masked",
        "continues nothing",
        "begins amid another",
        "compressed",
        "control frame too long",
        "goodbye",
    ],
)
async def test_a_broken_rule_closes_the_socket_with_its_code(wire: Wire, sent: bytes, code: int) -> None:
    wire.writer.write(sent)
    assert await wire.close_code() == code


async def test_a_refusal_is_read_even_by_a_client_that_is_still_sending(server: WebSocketServer, wire: Wire) -> None:
    """fault: C6"""
    wire.writer.write(frame(TEXT, b" " * (200 * 1024)))
    assert await wire.close_code() == 1009


async def test_a_message_that_does_not_end_is_cut_off() -> None:
    async with websocket_server(body_idle_seconds=0.1) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.writer.write(frame(TEXT, CREATE)[:20])
        assert await wire.close_code() == 1008


async def test_trickling_buys_no_more_time_than_a_body_has() -> None:
    """fault: C1"""
    async with (
        websocket_server(body_idle_seconds=0.4, body_seconds=0.2) as server,
        HttpConnection(server.url) as caller,
    ):
        wire = Wire(caller)
        await wire.shake(server)

        async def trickle() -> None:
            wire.writer.write(frame(0x01, b"{"))
            while True:
                wire.writer.write(frame(0x00, b" "))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert await wire.close_code() == 1008
        trickling.cancel()


async def test_an_idle_socket_is_pinged_and_kept() -> None:
    async with (
        websocket_server(head_seconds=0.1, keep_alive_seconds=0.1) as server,
        HttpConnection(server.url) as caller,
    ):
        server.gate.services.sockets.timeouts = WebSocketTimeouts(ping=0.05)
        wire = Wire(caller)
        await wire.shake(server)
        for _ in range(4):
            assert await wire.next() == (PING, b"")
        server.play("Hello.")
        wire.writer.write(frame(TEXT, CREATE))
        while (received := await wire.next())[0] == PING:
            pass
        assert msgspec.json.decode(received[1])["type"] == "response.created"


async def test_a_silent_socket_is_closed_in_the_end() -> None:
    async with websocket_server() as server, HttpConnection(server.url) as caller:
        server.gate.services.sockets.timeouts = WebSocketTimeouts(ping=0.05, silence=0.2)
        wire = Wire(caller)
        await wire.shake(server)
        assert await wire.close_code() == 1001


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"handshake": ()}, 426),
        ({"handshake": ("Upgrade: websocket", *HANDSHAKE[2:])}, 426),
        ({"handshake": (*HANDSHAKE[:2], "Sec-WebSocket-Version: 8", HANDSHAKE[3])}, 426),
        ({"handshake": (*HANDSHAKE[:3], "Sec-WebSocket-Key: short")}, 400),
        ({"handshake": HANDSHAKE[:3]}, 400),
        ({"handshake": ("Connection: Upgrade", "Upgrade: h2c", *HANDSHAKE[2:])}, 426),
        ({"handshake": (*HANDSHAKE, "Content-Length: 0")}, 426),
        ({"version": "1.0"}, 426),
        ({"path": "/v1/nowhere"}, 404),
        ({"path": "/v1/messages"}, 405),
        ({"path": "/healthz"}, 200),
        ({"method": "POST"}, 400),
        ({"host": "evil.example"}, 421),
    ],
)
async def test_what_is_no_handshake_of_ours_gets_an_answer_of_http(
    server: WebSocketServer, changes: dict[str, Any], status: int
) -> None:
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server, **changes) == status
        await wire.body()
        if status == 426:
            assert wire.headers["upgrade"] == "websocket"


async def test_no_websocket_is_opened_while_the_server_ends() -> None:
    """fault: K-G"""
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> str:
        asked.set()
        await go.wait()
        return "Finished."

    async with (
        websocket_server(drain_seconds=30) as server,
        HttpConnection(server.url) as caller,
        server.socket() as busy,
    ):
        server.play(slow)
        await busy.create()
        await asked.wait()
        wire = Wire(caller)
        await wire.shake(server, path="/healthz")
        await wire.body()
        closing = asyncio.create_task(server.listener.close())
        await asyncio.sleep(0)
        assert await wire.shake(server) == 503
        go.set()
        await closing


async def test_a_page_of_another_origin_gets_no_websocket(server: WebSocketServer) -> None:
    """A browser sends a foreign page's handshake without asking first, and would let it read what comes."""
    async with HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server, "Origin: https://evil.example") == 403
        assert (await wire.body())["error"]["code"] == "origin_not_allowed"
    async with HttpConnection(server.url) as caller:
        assert await Wire(caller).shake(server, "Origin: http://localhost:3000") == 101


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("X-Nothing: 1", 401),
        ("Authorization: Bearer wrong", 401),
        ("Authorization: Bearer ann-key", 101),
        ("x-api-key: ann-key", 101),
        ("Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.ann-key", 101),
        ("Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.wrong", 401),
        ("Authorization: Bearer tim-key", 403),
    ],
)
async def test_a_websocket_takes_the_keys_that_a_request_takes(header: str, status: int) -> None:
    async with websocket_server(config=with_keys(ANN, NO_CHAT)) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server, header) == status
        if status == 101 and "realtime" in header:
            assert wire.headers["sec-websocket-protocol"] == "realtime"
            server.play("Hello.")
            wire.writer.write(frame(TEXT, CREATE))
            assert text_of(await wire.answer()) == "Hello."


async def test_a_slow_reader_makes_the_model_wait_and_is_dropped_when_it_reads_nothing() -> None:
    """fault: C4"""
    async with websocket_server(write_stall_seconds=0.5) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        model = server.play("word " * 200_000)
        wire.writer.write(frame(TEXT, CREATE))

        async def dropped() -> bool:
            return bool(model.answers) and model.answers[0].closed

        await until(dropped)
        assert len(model.answers[0].read_events) < 60_000


async def test_pings_without_end_from_a_client_that_does_not_read_cost_no_memory() -> None:
    """fault: C4"""
    async with websocket_server(write_stall_seconds=30) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        flood = frame(PING, b"x" * 125) * 1000
        (connection,) = server.listener.connections()
        for _ in range(60):
            wire.writer.write(flood)
            await wire.writer.drain()
            assert connection.transport.get_write_buffer_size() < 1024 * 1024


async def test_messages_without_end_from_a_client_that_does_not_read_wait_in_its_own_buffers() -> None:
    """fault: C4"""
    async with websocket_server(body_bytes=64 * 1024) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        await wire.shake(server)
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = server.listener.connections()
        flood = frame(TEXT, b'{"type":"response.create","model":"nobody"}') * 1000

        async def send() -> None:
            while True:
                wire.writer.write(flood)
                await wire.writer.drain()

        async def paused() -> bool:
            return bool(connection.flow.read_paused)

        sending = asyncio.create_task(send())
        await until(paused)
        sending.cancel()
        assert connection.transport.get_write_buffer_size() < 1024 * 1024
        socket = connection._upgraded
        assert isinstance(socket, WebSocket)
        assert socket._waiting_bytes < 512 * 1024
        wire.writer.transport.abort()


async def test_a_client_that_closes_its_side_without_a_goodbye_has_left(server: WebSocketServer, wire: Wire) -> None:
    """fault: C2"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    model = server.play("A long answer.", pace=pace)
    wire.writer.write(frame(TEXT, CREATE))
    await paced.wait()
    wire.writer.write_eof()

    async def cancelled() -> bool:
        return model.answers[0].closed

    await until(cancelled)


async def test_frames_sent_before_the_handshake_is_answered_are_not_taken_for_messages(server: WebSocketServer) -> None:
    async with HttpConnection(server.url) as caller:
        lines = ["GET /v1/responses HTTP/1.1", f"Host: {server.url[7:]}", *HANDSHAKE]
        caller.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + frame(TEXT, CREATE))
        async with asyncio.timeout(30):
            received = await caller.reader.read()
        assert b"response.created" not in received


async def test_a_server_that_must_end_while_a_socket_closes_finishes_its_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with websocket_server(drain_seconds=30) as server, HttpConnection(server.url) as caller:
        wire = Wire(caller)
        assert await wire.shake(server, path="/bridge") == 101
        assert (await wire.next())[0] == TEXT
        server.listener.drain()
        closing = asyncio.create_task(server.listener.close())
        assert (await wire.next())[0] == CLOSE  # which this client does not answer
        server.listener.drain()
        await closing
        assert await wire.reader.read() == b""
    assert caplog.text == ""
