"""One WebSocket connection: the handshake, messages in and out, and the limits of any request.

A message may be as large as a body and take as long. Nothing is compressed, so that a few bytes cannot become many. To a
client that does not read, nothing is written: senders wait, and pongs are dropped. A dead client is found by the kernel,
which has to deliver our pings within the time for stalled writes; pongs are not required, because some clients send them
only while they read.

A frame costs the same however short it is, so frames are counted as well as bytes: one read is parsed in slices, with
other work of the loop between them, nothing is read while too many messages wait, and a client that sends small frames
without end is closed.

Knows frames, clocks and buffers; the parser is that of `websockets`, which is imported with the first handshake.
It must not know routes or what messages mean, and of keys only that one in a subprotocol is not sent back.
"""

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from toolgate.auth.authenticator import KEY_OFFERED
from toolgate.conversation.errors import ClientRequestError, GatewayOverloaded, InvalidRequest
from toolgate.http.callback_guard import aborts_on_error
from toolgate.http.exchange import Header, HttpExchange
from toolgate.http.protocol import HttpProtocol
from toolgate.http.request_cycle import RequestResponseCycle
from toolgate.http.request_limits import Headers
from toolgate.http.upgraded_connection import UpgradedConnectionInterface

if TYPE_CHECKING:
    from websockets.frames import Frame

# Close codes of RFC 6455.
NORMAL, GOING_AWAY, UNSUPPORTED, NOT_TEXT, BROKE_RULES, RESTARTING = 1000, 1001, 1003, 1007, 1008, 1012

# RFC 6455 has the server hash this behind the client's key, to prove that it speaks WebSocket.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_UPGRADE: Header = (b"upgrade", b"websocket")
_SLICE_BYTES = 1024  # given to the parser at a time: at most 170 frames
_TURN_FRAMES = 256  # handled before other work of the loop
_WAITING_MESSAGES = 64  # beyond which nothing is read
_SMALL_BYTES = 512  # a shorter frame is counted
_REASON_BYTES = 123  # a longer reason does not fit into a close frame


class WebSocketTimeouts(Struct, frozen=True):
    """Seconds between two pings, of silence after which the connection is closed, and for the client's close frame."""

    ping: float = 20.0
    silence: float = 900.0
    close: float = 1.0


class WebSocketLimits(Struct, frozen=True):
    """Bytes of a message, None for those of a body; how many small frames may come at once, and in each second."""

    message_bytes: int | None = None
    small_burst: int = 4096
    small_per_second: float = 256.0


DEFAULT_LIMITS = WebSocketLimits()


def accept(
    exchange: HttpExchange,
    timeouts: WebSocketTimeouts,
    on_drain: Callable[[], None],
    limits: WebSocketLimits = DEFAULT_LIMITS,
) -> "WebSocket":
    """Upgrade the request's connection to a WebSocket; 426 for a request that is no handshake.

    `on_drain` is called when the server drains: then nothing new should start, and the socket be closed soon.
    """
    response = exchange.response
    connection = response.connection
    if not isinstance(connection, HttpProtocol) or not connection.may_upgrade(response):
        raise upgrade_required(exchange, "This path speaks WebSocket to a GET: open it with ws:// or wss://.")
    if connection.state.draining:
        raise GatewayOverloaded("The server is shutting down.", retry_after=1)
    if exchange.named.get(b"sec-websocket-version", b"").strip() != b"13":
        exchange.extra_headers.append((b"sec-websocket-version", b"13"))
        raise upgrade_required(exchange, "Only version 13 of the WebSocket protocol is supported.")
    key = exchange.named.get(b"sec-websocket-key", b"").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_key = False
    if not is_key:
        raise InvalidRequest("The Sec-WebSocket-Key header must be 16 bytes in base64.", code="bad_handshake")
    most = limits.message_bytes or connection.body_limit()
    socket = WebSocket(connection, response, most, timeouts, on_drain, limits)
    exchange.started = True
    connection.upgrade(response, _handshake(key, exchange, connection.default_headers), socket)
    return socket


def upgrade_required(exchange: HttpExchange, message: str) -> ClientRequestError:
    """Return the error that makes a client use another transport, and add its header."""
    exchange.extra_headers.append(_UPGRADE)
    return ClientRequestError(message, status=426, code="upgrade_required")


class WebSocket:
    """An open WebSocket; `gone` once nothing can be sent any more, `busy` while the client may be silent."""

    def __init__(
        self,
        connection: UpgradedConnectionInterface,
        response: RequestResponseCycle,
        most: int,
        timeouts: WebSocketTimeouts,
        on_drain: Callable[[], None],
        limits: WebSocketLimits = DEFAULT_LIMITS,
    ) -> None:
        from websockets.frames import Opcode
        from websockets.protocol import OPEN, SERVER, Protocol

        self.gone = self.busy = False
        self._on_drain = on_drain
        self._connection = connection
        self._response = response
        self._most = most
        self._limits = limits
        self._timeouts = timeouts
        self._open = OPEN
        self._opcode = Opcode
        self._unread = bytearray()
        self._reading: asyncio.Handle | None = None
        self._small_frames = 0.0
        self._parser = Protocol(SERVER, state=OPEN, max_size=most)
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._fragments: bytearray | None = None
        self._changed = asyncio.Event()
        self._received_at = self._sent_at = connection.loop.time()
        self._incomplete_since: float | None = None
        self._closing = False
        self._handle_at_once: Callable[[bytes], bool] | None = None
        self._timer = connection.loop.call_later(self._check_seconds, self._tick)

    @property
    def most(self) -> int:
        """The largest message, in bytes."""
        return self._most

    @property
    def has_messages(self) -> bool:
        """Whether a message waits for `receive`."""
        return bool(self._messages)

    def handle_at_once(self, handle: Callable[[bytes], bool]) -> None:
        """Offer every message to `handle` as soon as it is read, which saves a turn of the loop.

        One for which it returns False, and every message behind that until it was received, waits for `receive`.
        """
        self._handle_at_once = handle

    @property
    def _check_seconds(self) -> float:
        return min(self._timeouts.ping, self._connection.limits.body_idle_seconds) / 2

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to read what was sent before."""
        return self._connection.flow.write_paused and not self.gone

    async def drain_writes(self) -> None:
        """Wait until the client has read enough of what was sent before."""
        await self._connection.flow.drain()

    async def receive(self) -> bytes | None:
        """Return the next message; None if the connection is gone or `wake` was called."""
        if not self._messages and not self.gone:
            await self._changed.wait()
        self._changed.clear()
        if self.gone or not self._messages:
            return None
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if len(message) < _SMALL_BYTES:
            await asyncio.sleep(0)  # many short messages leave time for other work of the loop
        if not self._has_enough():
            self._read_later()
        return message

    def _has_enough(self) -> bool:
        return self._waiting_bytes > self._most or len(self._messages) > _WAITING_MESSAGES

    async def send(self, *texts: bytes) -> None:
        """Send messages, after the client has read enough of what was sent before."""
        if self.must_wait:
            await self.drain_writes()
        self.write(*texts)

    def write(self, *texts: bytes) -> None:
        """Send messages, unless the client is gone."""
        if self._connection.transport.is_closing():
            return  # reset by the client; `lost` follows
        if not self.gone and self._parser.state is self._open:
            self._sent_at = self._connection.loop.time()
            self._connection.transport.write(b"".join([_frame(text) for text in texts]))

    def wake(self) -> None:
        """Let `receive` return."""
        self._changed.set()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame, wait a moment for the client's, and close."""
        try:
            if not self.gone and not self._closing:
                self._closing = True
                self._parser.send_close(code, reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
                self._flush()
                with suppress(TimeoutError):  # the client does not even read
                    async with asyncio.timeout(self._timeouts.close):
                        while not self.gone:
                            self._changed.clear()
                            await self._changed.wait()
        finally:  # also if the task is cancelled meanwhile
            self.gone = True
            self._timer.cancel()
            if not self._response.complete:
                self._response.finish()

    def feed(self, data: bytes) -> None:
        """Receive bytes, and parse as many frames as one turn of the loop may handle."""
        if self.gone:
            return
        now = self._connection.loop.time()
        self._small_frames = max(0.0, self._small_frames - (now - self._received_at) * self._limits.small_per_second)
        self._received_at = now
        self._unread += data
        # After a close frame is sent, reading goes on even with full queues: the client's close frame must be seen.
        if self._reading is None and not (self._has_enough() and self._parser.state is self._open):
            self._read()
        else:
            self._connection.flow.pause_reading()

    def _read_later(self) -> None:
        """Read on in the loop's next turn."""
        if self._reading is None and not self.gone:
            self._reading = self._connection.loop.call_soon(self._read)

    @aborts_on_error
    def _read(self) -> None:
        """Parse slices of what was received, until enough frames are handled or enough messages wait."""
        self._reading = None
        taken = position = 0
        unread = self._unread
        while position < len(unread) and taken < _TURN_FRAMES and not self.gone:
            if self._has_enough() and self._parser.state is self._open:
                break
            self._parser.receive_data(unread[position : position + _SLICE_BYTES])
            position += _SLICE_BYTES
            frames = cast("list[Frame]", self._parser.events_received())  # no requests: the handshake is ours
            taken += len(frames)
            for frame in frames:
                self._handle(frame)
                frame.data = b""  # the parser keeps its last frame until the next one has arrived
        del unread[:position]
        self._end_turn()

    def _end_turn(self) -> None:
        if self.gone:
            return
        if self._connection.flow.write_paused and self._parser.state is self._open:
            self._parser.data_to_send()  # drops pongs for a client that does not read
        self._flush()
        # The time for a message runs from its first byte, however many pieces it comes in.
        unfinished = self._fragments is not None or len(self._parser.reader.buffer) > 0 or bool(self._unread)
        self._incomplete_since = (self._incomplete_since or self._received_at) if unfinished else None
        if self.gone:
            return
        if self._has_enough() and self._parser.state is self._open:
            self._connection.flow.pause_reading()
        elif self._unread:
            # The turn was used up: what is left is parsed in the next one, and no more is read until then.
            self._connection.flow.pause_reading()
            self._read_later()
        else:
            self._connection.flow.resume_reading()

    def abort(self, error: Exception) -> None:
        """Log the failure of a callback and end the connection."""
        self._connection.abort(error)

    def drain(self) -> None:
        """Start nothing new, and close when everything is done."""
        self._on_drain()

    def lost(self) -> None:
        """Note that the connection is closed."""
        self.gone = True
        self._timer.cancel()
        self._messages.clear()
        self._unread.clear()
        if self._reading is not None:
            self._reading.cancel()
        self._changed.set()

    def _handle(self, frame: "Frame") -> None:
        opcode = self._opcode
        if self._closing or self._parser.state is not self._open:
            return  # a close frame was sent or received: what follows is discarded
        if len(frame.data) < _SMALL_BYTES:
            self._small_frames += 1
        if self._small_frames > self._limits.small_burst:
            self._parser.fail(BROKE_RULES, "Too many small frames.")
        elif frame.opcode is opcode.BINARY:
            self._parser.fail(UNSUPPORTED, "Messages are text here.")
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
        # RFC 6455 demands UTF-8 of a text message, and a character may be cut by a frame: only the whole can be checked.
        try:
            message.decode()
        except UnicodeDecodeError:
            self._parser.fail(NOT_TEXT, "This text is not UTF-8.")
            return
        if self._handle_at_once is not None and not self._messages and self._handle_at_once(message):
            return
        self._messages.append(message)
        self._waiting_bytes += len(message)
        self._changed.set()

    def _flush(self) -> None:
        pieces = self._parser.data_to_send()
        if not pieces:
            return
        self._sent_at = self._connection.loop.time()
        self._connection.transport.write(b"".join(pieces))
        if not pieces[-1]:  # the end of the stream
            self.lost()
            if self._parser.parser_exc is None and self._parser.close_rcvd is not None:
                self._connection.transport.close()
            else:  # the client broke a rule, and has yet to read the close frame
                self._connection.hang_up()

    @aborts_on_error
    def _tick(self) -> None:
        self._timer = self._connection.loop.call_later(self._check_seconds, self._tick)
        now = self._connection.loop.time()
        if self._closing or self._connection.flow.read_paused:
            return  # the server is the slow side
        limits, since = self._connection.limits, self._incomplete_since
        idle = now - self._received_at
        if since is not None and (now - since > limits.body_seconds or idle > limits.body_idle_seconds):
            self._fail(BROKE_RULES, "The message took too long to arrive.")
        # A client that waits for an answer may be silent for as long as that takes.
        elif not self.busy and idle > self._timeouts.silence:
            self._fail(GOING_AWAY, "Nothing was received for too long.")
        elif now - max(self._received_at, self._sent_at) >= self._timeouts.ping and not self.must_wait:
            self._parser.send_ping(b"")
            self._flush()

    def _fail(self, code: int, reason: str) -> None:
        self._parser.fail(code, reason)
        self._flush()


def _frame(text: bytes) -> bytes:
    """Encode a message as one frame; `websockets` takes longer for it than making the message took."""
    # 0x81 is a text frame and the last of its message. The length follows: one byte below 126, otherwise 126 and two
    # bytes, or 127 and eight. A server does not mask.
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 0x10000:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


def _handshake(key: bytes, exchange: HttpExchange, default_headers: Headers) -> bytes:
    """Encode the response that accepts a handshake."""
    accepted = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    headers = [
        *default_headers,
        _UPGRADE,
        (b"connection", b"upgrade"),
        (b"sec-websocket-accept", accepted),
        *exchange.extra_headers,
    ]
    # A browser that offers subprotocols closes the connection unless one is chosen; a key among them is not sent back.
    offered = [name.strip() for name in exchange.named.get(b"sec-websocket-protocol", b"").split(b",")]
    chosen = next((name for name in offered if name and not name.startswith(KEY_OFFERED)), None)
    if chosen is not None:
        headers.append((b"sec-websocket-protocol", chosen))
    return b"HTTP/1.1 101 Switching Protocols\r\n" + b"".join(b"%s: %s\r\n" % line for line in headers) + b"\r\n"
