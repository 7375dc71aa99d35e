"""One connection to a peer, and the exchanges on it: each id receives its own frames, and all fail when it is lost.

Frames are received all the time, so that a loss is noticed at once. A ping is sent when the peer has been silent, and the
connection counts as lost when no pong follows. Knows no conversations.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from msgspec import Struct

from toolgate import __version__
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamRejected, UpstreamTimeout, UpstreamUnavailable
from toolgate.upstreams.stateful_chat.exchange import StatefulChatExchange, fault_of_frame
from toolgate.upstreams.stateful_chat.frames import (
    PROTOCOL,
    SentFrame,
    StatefulChatCancelAnswerFrame,
    StatefulChatErrorFrame,
    StatefulChatHelloFrame,
    StatefulChatPingFrame,
    StatefulChatPongFrame,
    StatefulChatWelcomeFrame,
    decode_frame,
    encode_frame,
)
from toolgate.upstreams.stateful_chat.websocket import StatefulChatConnectionLost, StatefulChatWebSocket
from toolgate.upstreams.transport.limits import KIB, MIB, UpstreamTimeouts, size
from toolgate.wire.jsontext import encode

_INVALID_PAYLOAD = 1007  # the close code of RFC 6455 for a message that makes no sense
_FRAME_OVERHEAD = 4 * KIB  # what a frame has beside the text: its type, its id and the id of the conversation


class StatefulChatLimits(Struct, frozen=True):
    """Limits of time and size for one connection."""

    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    heartbeat: float = 15.0  # seconds of silence before a ping, and then until the connection counts as lost
    frame: int = 1 * MIB  # bytes of one frame that the peer sends
    unread: int = 1 * MIB  # letters of an answer that may wait for their reader
    answer: int = 32 * MIB  # letters of one answer


class StatefulChatConnection:
    """An open connection; `proven` once something useful was received over it."""

    def __init__(self, socket: StatefulChatWebSocket, peer: str, limits: StatefulChatLimits) -> None:
        self.open = True
        self.proven = False
        self._socket = socket
        self._peer = peer
        self._limits = limits
        self._max_frame: int | None = None
        self._ids = map(str, count(1))
        self._exchanges: dict[str, StatefulChatExchange] = {}
        self._received_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def handshake(self) -> None:
        """Exchange the first frames and start to receive; the peer must support our protocol."""
        try:
            await self._socket.send(encode_frame(StatefulChatHelloFrame(PROTOCOL, f"toolgate/{__version__}")))
            welcome: StatefulChatWelcomeFrame | None = None
            while welcome is None:
                match decode_frame(await self._socket.receive()):
                    case StatefulChatWelcomeFrame() as welcome:
                        pass
                    case StatefulChatErrorFrame() as failure:
                        raise fault_of_frame(failure, self._peer)
        except StatefulChatConnectionLost as loss:
            # A peer whose library cannot refuse the upgrade with status 401 closes the connection with code 4401.
            code = "upstream_auth" if "credentials" in str(loss) else None
            raise UpstreamUnavailable(f"{self._peer} {loss} before it sent welcome", code=code) from None
        if welcome.protocol != PROTOCOL:
            raise UpstreamUnavailable(f"{self._peer} speaks protocol {welcome.protocol}, not {PROTOCOL}")
        self._max_frame = welcome.max_frame
        self._received_at = asyncio.get_running_loop().time()
        self._start_task(self._receive_all())
        self._start_task(self._watch())

    def check_size(self, text: str) -> None:
        """Refuse a text that is longer than the peer accepts in one frame."""
        # A character takes at most six bytes, as \uXXXX, so that most texts need not be encoded to be measured.
        if self._max_frame is None or len(text) * 6 + _FRAME_OVERHEAD <= self._max_frame:
            return
        if len(encode(text)) + _FRAME_OVERHEAD > self._max_frame:
            text = f"The message is too long for {self._peer}, which takes {size(self._max_frame)} at most."
            raise UpstreamRejected(text, code="context_length_exceeded")

    async def ask(self, frame: Callable[[str], SentFrame]) -> StatefulChatExchange:
        """Send the frame that `frame` makes for a new id, and wait for the first response to it."""
        limits = self._limits
        exchange = StatefulChatExchange(
            next(self._ids), self._peer, limits.timeouts, limits.unread, limits.answer, self._cancel
        )
        self._exchanges[exchange.id] = exchange
        limit = limits.timeouts.first_byte
        try:
            # Sending waits while the peer does not read.
            try:
                async with asyncio.timeout(limit if limit < float("inf") else None):
                    await self._socket.send(encode_frame(frame(exchange.id)))
            except StatefulChatConnectionLost as loss:  # nothing was received, so that it may be retried
                raise UpstreamUnavailable(f"{self._peer} {loss} before it was asked") from None
            except TimeoutError:
                raise UpstreamTimeout(f"{self._peer} read nothing for {limit:g} s (limit: first_byte)") from None
            await exchange.begin()
        except BaseException:
            exchange.cancel()
            self._exchanges.pop(exchange.id, None)
            raise
        return exchange

    async def aclose(self, code: int = 1000) -> None:
        """Close the connection; exchanges under way fail."""
        self.lose("was left")
        # One of these tasks may be the caller, and a task that waits for itself would never end.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._socket.aclose(code)

    def lose(self, how: str) -> None:
        """Fail every open exchange: nothing more will be received."""
        self.open = False
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.lose(how)

    async def _receive_all(self) -> None:
        """Pass every frame to its exchange until the connection ends."""
        code, how = 1000, ""
        try:
            while True:
                text = await self._socket.receive()
                self._received_at = asyncio.get_running_loop().time()
                await self._receive(text)
        except StatefulChatConnectionLost as loss:
            how = str(loss)
        except InvalidUpstreamAnswer as fault:
            code, how = _INVALID_PAYLOAD, f"does not keep to the protocol: {fault.message}"
        self.lose(how)
        await self._socket.aclose(code)

    async def _receive(self, text: str) -> None:
        frame = decode_frame(text)
        match frame:
            case None | StatefulChatWelcomeFrame() | StatefulChatPongFrame():
                return
            case StatefulChatPingFrame():
                await self._socket.send(encode_frame(StatefulChatPongFrame()))
            case StatefulChatErrorFrame(id=None):  # about the connection, and not about one exchange
                raise StatefulChatConnectionLost(f"gave up the connection: {fault_of_frame(frame, self._peer).message}")
            case _ if frame.id is not None and (exchange := self._exchanges.get(frame.id)) is not None:
                self.proven = True
                exchange.receive(frame)
                # A conversation is created by an exchange of its own, which is over with it.
                if exchange.over or exchange.conversation is not None:
                    self._exchanges.pop(frame.id, None)

    async def _watch(self) -> None:
        """Send a ping when nothing was received for a while; a peer that does not reply is lost."""
        loop, interval = asyncio.get_running_loop(), self._limits.heartbeat
        while self.open:
            silence = loop.time() - self._received_at
            if silence >= 2 * interval:
                self.lose(f"gave no sign of life for {silence:.0f} s")
                await self._socket.aclose()
                return
            if silence >= interval:
                await self._send_if_open(StatefulChatPingFrame())
            await asyncio.sleep(interval - silence if silence < interval else min(interval, 2 * interval - silence))

    def _cancel(self, exchange: StatefulChatExchange) -> None:
        """Cancel an exchange at the peer; frames that still arrive for it are dropped."""
        self._exchanges.pop(exchange.id, None)
        if self.open:
            self._start_task(self._send_if_open(StatefulChatCancelAnswerFrame(exchange.id)))

    async def _send_if_open(self, frame: SentFrame) -> None:
        with contextlib.suppress(StatefulChatConnectionLost):  # `_receive_all` gets the same error and handles it
            await self._socket.send(encode_frame(frame))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        # Kept in a set, because the loop alone holds its tasks weakly.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
