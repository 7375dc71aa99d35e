"""One WebSocket at the edge: the handshake, messages in and out, and the limits that hold for any request.

A message is a body by another name: it may be as large and take as long.  Nothing is ever compressed, so that a few bytes
cannot become many.  What a client does not read is not written: whoever writes has to wait, and pongs are left out.  That
a client is dead is found by the kernel, which has to bring our pings across within the time for stalled writes; whether it
answers them matters little, for some clients only do while they read.

A frame costs the same however little it carries, so frames are counted as well as bytes: what one read brought is taken in
slices with turns of the loop between them, nothing is read while messages wait, and whoever sends small frames without end
is closed.

Knows frames, clocks and buffers; the framing itself is that of `websockets`, which is imported with the first handshake.
It must not know routes or what messages say, and of keys only where they are not to be repeated.
"""

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from toolgate.conversation.errors import ClientFault, InvalidRequest, Overloaded
from toolgate.server.callers.auth import KEY_OFFERED
from toolgate.server.edge.answer import Answer
from toolgate.server.edge.guard import GuardedProtocol, aborts_on_error
from toolgate.server.exchange import Exchange, Header

if TYPE_CHECKING:
    from websockets.frames import Frame

NORMAL, GOING_AWAY, UNSUPPORTED, NOT_TEXT, BROKE_RULES, RESTARTING = 1000, 1001, 1003, 1007, 1008, 1012
"""Why a WebSocket is closed, in RFC 6455's numbers."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_WANTED: Header = (b"upgrade", b"websocket")
_SLICE_BYTES = 1024  # given to the framing at a time: at most 170 frames
_TURN_FRAMES = 256  # taken before the loop gets its turn
_WAITING_MESSAGES = 64  # beyond which nothing is read
_SMALL_BYTES = 512  # a frame that carries fewer is counted
_SMALL_BURST, _SMALL_PER_SECOND = 4096, 256.0


class Patience(Struct, frozen=True):
    """Seconds: between two pings, of silence after which nobody is there, and for the other side's goodbye."""

    ping: float = 20.0
    silence: float = 900.0
    farewell: float = 1.0


def accept(exchange: Exchange, patience: Patience) -> "WebSocket":
    """Make the request's connection a WebSocket, or refuse in HTTP's words: 426 to a request that is no handshake."""
    answer = exchange.answer
    edge = answer.edge
    if not isinstance(edge, GuardedProtocol) or not edge.may_switch(answer):
        raise upgrade_required(exchange, "This path speaks WebSocket to a GET: open it with ws:// or wss://.")
    if edge.draining:
        raise Overloaded("The server is shutting down.", retry_after=1)
    if exchange.named.get(b"sec-websocket-version", b"").strip() != b"13":
        exchange.extra_headers.append((b"sec-websocket-version", b"13"))
        raise upgrade_required(exchange, "Only version 13 of the WebSocket protocol is spoken here.")
    key = exchange.named.get(b"sec-websocket-key", b"").strip()
    if not _is_key(key):
        raise InvalidRequest("The Sec-WebSocket-Key header must be 16 bytes in base64.", code="bad_handshake")
    socket = WebSocket(edge, answer, edge.message_bytes(), patience)
    exchange.started = True
    edge.switch(answer, _head(key, _chosen(exchange), exchange, edge), socket)
    return socket


def upgrade_required(exchange: Exchange, message: str) -> ClientFault:
    """The refusal that makes a client take another transport, and its header."""
    exchange.extra_headers.append(_WANTED)
    return ClientFault(message, status=426, code="upgrade_required")


class WebSocket:
    """An open WebSocket; `gone` once nothing can be said on it any more, `busy` while its silence is no bad sign."""

    def __init__(self, edge: GuardedProtocol, answer: Answer, most: int, patience: Patience) -> None:
        from websockets.frames import Opcode
        from websockets.protocol import OPEN, SERVER, Protocol

        self.gone = self.busy = False
        self.on_drain: Callable[[], None] = self.wake
        self._edge = edge
        self._answer = answer
        self._most = most
        self._patience = patience
        self._open = OPEN
        self._opcode = Opcode
        self._unread = bytearray()
        self._reading: asyncio.Handle | None = None
        self._small_frames = 0.0
        self._framing = Protocol(SERVER, state=OPEN, max_size=most)
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._fragments: bytearray | None = None
        self._news = asyncio.Event()
        self._heard_at = self._said_at = edge.loop.time()
        self._began_at: float | None = None
        self._closing = False
        self._timer = edge.loop.call_later(self._step, self._tick)

    @property
    def most(self) -> int:
        """Bytes of the largest message."""
        return self._most

    @property
    def _step(self) -> float:
        return min(self._patience.ping, self._edge.limits.body_idle_seconds) / 2

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to take what was sent before."""
        return self._edge.flow.write_paused and not self.gone

    async def drain_writes(self) -> None:
        """Wait until the client has taken what was sent before."""
        await self._edge.flow.drain()

    async def receive(self) -> bytes | None:
        """The next message; None if there is other news: it is gone, or somebody called `wake`."""
        if not self._messages and not self.gone:
            await self._news.wait()
        self._news.clear()
        if self.gone or not self._messages:
            return None
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if len(message) < _SMALL_BYTES:
            await asyncio.sleep(0)  # many of them are taken in many turns
        if not self._has_enough():
            self._read_later()
        return message

    def _has_enough(self) -> bool:
        return self._waiting_bytes > self._most or len(self._messages) > _WAITING_MESSAGES

    async def send(self, *texts: bytes) -> None:
        """Send messages, after the client has taken what was sent before."""
        if self.must_wait:
            await self.drain_writes()
        self.write(*texts)

    def write(self, *texts: bytes) -> None:
        """Send messages; nobody hears them if the client is gone."""
        if self._edge.transport.is_closing():
            return  # reset by the client, of which `lost` will tell
        if not self.gone and self._framing.state is self._open:
            self._said_at = self._edge.loop.time()
            self._edge.transport.write(b"".join([_frame(text) for text in texts]))

    def wake(self) -> None:
        """Let `receive` return."""
        self._news.set()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say goodbye, wait a moment for the other side's, and close."""
        if not self.gone and not self._closing:
            self._closing = True
            self._framing.send_close(code, reason)
            self._flush()
            await self._answered_farewell()
        self.gone = True
        self._timer.cancel()
        if not self._answer.complete:
            self._answer.finish()

    async def _answered_farewell(self) -> None:
        try:
            async with asyncio.timeout(self._patience.farewell):
                while not self.gone:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass  # it does not even read

    def feed(self, data: bytes) -> None:
        """Take what has arrived, as far as one turn of the loop goes."""
        if self.gone:
            return
        now = self._edge.loop.time()
        self._small_frames = max(0.0, self._small_frames - (now - self._heard_at) * _SMALL_PER_SECOND)
        self._heard_at = now
        self._unread += data
        if self._reading is None and not (self._has_enough() and self._framing.state is self._open):
            self._read()
        else:
            self._edge.flow.pause_reading()

    def _read_later(self) -> None:
        """Go on reading in the loop's next turn."""
        if self._reading is None and not self.gone:
            self._reading = self._edge.loop.call_soon(self._read)

    @aborts_on_error
    def _read(self) -> None:
        """Take slices of what has arrived until a turn's number of frames is reached or messages wait."""
        self._reading = None
        taken = position = 0
        unread = self._unread
        while position < len(unread) and taken < _TURN_FRAMES and not self.gone:
            if self._has_enough() and self._framing.state is self._open:
                break
            self._framing.receive_data(unread[position : position + _SLICE_BYTES])
            position += _SLICE_BYTES
            frames = cast("list[Frame]", self._framing.events_received())  # the handshake was ours
            taken += len(frames)
            for frame in frames:
                self._take(frame)
        del unread[:position]
        self._end_turn()

    def _end_turn(self) -> None:
        if self.gone:
            return
        if self._edge.flow.write_paused and self._framing.state is self._open:
            self._framing.data_to_send()  # pongs for somebody who does not read
        self._flush()
        unfinished = self._fragments is not None or len(self._framing.reader.buffer) > 0 or bool(self._unread)
        self._began_at = (self._began_at or self._heard_at) if unfinished else None
        if self.gone:
            return
        if self._has_enough() and self._framing.state is self._open:
            self._edge.flow.pause_reading()
        elif self._unread:
            self._edge.flow.pause_reading()
            self._read_later()
        else:
            self._edge.flow.resume_reading()

    def abort(self, error: Exception) -> None:
        """Log the failure of a callback and end the connection."""
        self._edge.abort(error)

    def drain(self) -> None:
        """Begin nothing new, and end when all is done."""
        self.on_drain()

    def lost(self) -> None:
        """Take note that the connection is gone."""
        self.gone = True
        self._timer.cancel()
        self._messages.clear()
        self._unread.clear()
        if self._reading is not None:
            self._reading.cancel()
        self._news.set()

    def _take(self, frame: "Frame") -> None:
        opcode = self._opcode
        if self._closing or self._framing.state is not self._open:
            return
        if len(frame.data) < _SMALL_BYTES:
            self._small_frames += 1
        if self._small_frames > _SMALL_BURST:
            self._framing.fail(BROKE_RULES, "Too many small frames.")
        elif frame.opcode is opcode.BINARY:
            self._framing.fail(UNSUPPORTED, "Messages are text here.")
        elif frame.opcode is opcode.TEXT and frame.fin:
            self._deliver(bytes(frame.data))
        elif frame.opcode is opcode.TEXT:
            self._fragments = bytearray(frame.data)
        elif frame.opcode is opcode.CONT and self._fragments is not None:
            self._fragments += frame.data
            if frame.fin:
                whole, self._fragments = bytes(self._fragments), None
                self._deliver(whole)

    def _deliver(self, message: bytes) -> None:
        try:
            message.decode()
        except UnicodeDecodeError:
            self._framing.fail(NOT_TEXT, "This text is not UTF-8.")
            return
        self._messages.append(message)
        self._waiting_bytes += len(message)
        self._news.set()

    def _flush(self) -> None:
        pieces = self._framing.data_to_send()
        if not pieces:
            return
        self._said_at = self._edge.loop.time()
        self._edge.transport.write(b"".join(pieces))
        if not pieces[-1]:  # the end of the stream
            self._hang_up()

    def _hang_up(self) -> None:
        """Both have said goodbye, or the client broke the rules and has been told so."""
        self.lost()
        if self._framing.parser_exc is None and self._framing.close_rcvd is not None:
            self._edge.transport.close()
        else:
            self._edge.hang_up()

    @aborts_on_error
    def _tick(self) -> None:
        self._timer = self._edge.loop.call_later(self._step, self._tick)
        now = self._edge.loop.time()
        if self._closing or self._edge.flow.read_paused:
            return  # we are the slow side
        if self._is_overdue(now):
            self._fail(BROKE_RULES, "The message took too long to arrive.")
        elif not self.busy and now - self._heard_at > self._patience.silence:
            self._fail(GOING_AWAY, "Nothing was heard for too long.")
        elif now - max(self._heard_at, self._said_at) >= self._patience.ping and not self.must_wait:
            self._framing.send_ping(b"")
            self._flush()

    def _is_overdue(self, now: float) -> bool:
        limits, began = self._edge.limits, self._began_at
        if began is None:
            return False
        return now - began > limits.body_seconds or now - self._heard_at > limits.body_idle_seconds

    def _fail(self, code: int, reason: str) -> None:
        self._framing.fail(code, reason)
        self._flush()


def _chosen(exchange: Exchange) -> bytes | None:
    """A browser that offers subprotocols goes away unless one is chosen; a key is not told back."""
    offered = [name.strip() for name in exchange.named.get(b"sec-websocket-protocol", b"").split(b",")]
    return next((name for name in offered if name and not name.startswith(KEY_OFFERED)), None)


def _frame(text: bytes) -> bytes:
    """A message as one frame: written here, since the library takes longer for it than making the event took."""
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 0x10000:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


def _head(key: bytes, protocol: bytes | None, exchange: Exchange, edge: GuardedProtocol) -> bytes:
    accepted = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    headers = [
        *edge.server_state.default_headers,
        _WANTED,
        (b"connection", b"upgrade"),
        (b"sec-websocket-accept", accepted),
        *exchange.extra_headers,
    ]
    if protocol is not None:
        headers.append((b"sec-websocket-protocol", protocol))
    return b"HTTP/1.1 101 Switching Protocols\r\n" + b"".join(b"%s: %s\r\n" % line for line in headers) + b"\r\n"
