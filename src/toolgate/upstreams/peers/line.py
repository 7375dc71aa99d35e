"""One connection to a peer, and all that is asked on it: every id hears its own frames, and its loss is told to all.

The line listens all the time, so a loss is known at once. It asks for a sign of life when the peer has been silent, and
counts it as lost when none comes. Knows no conversations.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from msgspec import Struct

from toolgate import __version__
from toolgate.conversation.errors import Garbled, Rejected, TimedOut, Unavailable
from toolgate.upstreams.peers.exchange import Exchange, told_fault
from toolgate.upstreams.peers.frames import (
    PROTOCOL,
    Cancel,
    Failed,
    Hello,
    Ping,
    Pong,
    Told,
    Welcome,
    decode_frame,
    encode_frame,
)
from toolgate.upstreams.peers.websocket import Lost, WebSocket
from toolgate.upstreams.transport.limits import KIB, MIB, Timeouts, size
from toolgate.wire.jsontext import encode

_GARBLED = 1007
_FRAME_OVERHEAD = 4 * KIB


class Limits(Struct, frozen=True):
    """How long and how much on one line."""

    timeouts: Timeouts = Timeouts()
    heartbeat: float = (
        15.0  # seconds of silence before a sign of life is asked for, and then until the line counts as lost
    )
    frame: int = 1 * MIB  # bytes of one frame that the peer sends
    unread: int = 1 * MIB  # letters of an answer that may wait for their reader
    answer: int = 32 * MIB  # letters of one answer


class Line:
    """An open connection; `proven` once something useful has come over it."""

    def __init__(self, socket: WebSocket, peer: str, limits: Limits) -> None:
        self.open = True
        self.proven = False
        self._socket = socket
        self._peer = peer
        self._limits = limits
        self._max_frame: int | None = None
        self._ids = map(str, count(1))
        self._exchanges: dict[str, Exchange] = {}
        self._heard_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def greet(self) -> None:
        """Exchange first words and begin to listen; the peer must speak our protocol."""
        try:
            await self._socket.send(encode_frame(Hello(PROTOCOL, f"toolgate/{__version__}")))
            welcome = await self._welcome()
        except Lost as loss:
            code = "upstream_auth" if "credentials" in str(loss) else None
            raise Unavailable(f"{self._peer} {loss} before it said welcome", code=code) from None
        if welcome.protocol != PROTOCOL:
            raise Unavailable(f"{self._peer} speaks protocol {welcome.protocol}, not {PROTOCOL}")
        self._max_frame = welcome.max_frame
        self._heard_at = asyncio.get_running_loop().time()
        self._begin(self._listen())
        self._begin(self._watch())

    def check_size(self, text: str) -> None:
        """Refuse a text that the peer would not take in one frame."""
        if self._max_frame is None or len(text) * 6 + _FRAME_OVERHEAD <= self._max_frame:  # no letter takes more
            return
        if len(encode(text)) + _FRAME_OVERHEAD > self._max_frame:
            told = f"The message is too long for {self._peer}, which takes {size(self._max_frame)} at most."
            raise Rejected(told, code="context_length_exceeded")

    async def ask(self, frame: Callable[[str], Told]) -> Exchange:
        """Send what `frame` makes of a fresh id, and wait for the first thing that comes back."""
        limits = self._limits
        exchange = Exchange(next(self._ids), self._peer, limits.timeouts, limits.unread, limits.answer, self._leave)
        self._exchanges[exchange.id] = exchange
        try:
            await self._say(frame(exchange.id))
            await exchange.begin()
        except BaseException:
            exchange.cancel()
            self._exchanges.pop(exchange.id, None)
            raise
        return exchange

    async def aclose(self, code: int = 1000) -> None:
        """Close; whatever is under way fails."""
        self.lose("was left")
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._socket.aclose(code)

    def lose(self, how: str) -> None:
        """Nothing more comes over this line: every open id fails."""
        self.open = False
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.lose(how)

    async def _welcome(self) -> Welcome:
        while True:
            match decode_frame(await self._socket.receive()):
                case Welcome() as welcome:
                    return welcome
                case Failed() as failure:
                    raise told_fault(failure, self._peer)

    async def _say(self, frame: Told) -> None:
        limit = self._limits.timeouts.first_byte
        try:
            async with asyncio.timeout(limit if limit < float("inf") else None):
                await self._socket.send(encode_frame(frame))
        except Lost as loss:  # it has heard nothing, so it may be asked again
            raise Unavailable(f"{self._peer} {loss} before it was asked") from None
        except TimeoutError:
            raise TimedOut(f"{self._peer} read nothing for {limit:g} s (limit: first_byte)") from None

    async def _listen(self) -> None:
        """Hand every frame to its id, until there are no more."""
        code, how = 1000, ""
        try:
            while True:
                text = await self._socket.receive()
                self._heard_at = asyncio.get_running_loop().time()
                await self._hear(text)
        except Lost as loss:
            how = str(loss)
        except Garbled as fault:
            code, how = _GARBLED, f"does not keep to the protocol: {fault.message}"
        self.lose(how)
        await self._socket.aclose(code)

    async def _hear(self, text: str) -> None:
        frame = decode_frame(text)
        match frame:
            case None | Welcome() | Pong():
                return
            case Ping():
                await self._socket.send(encode_frame(Pong()))
            case Failed(id=None):
                raise Lost(f"gave up the connection: {told_fault(frame, self._peer).message}")
            case _ if frame.id is not None and (exchange := self._exchanges.get(frame.id)) is not None:
                self.proven = True
                exchange.hear(frame)
                if exchange.over or exchange.conversation is not None:
                    self._exchanges.pop(frame.id, None)

    async def _watch(self) -> None:
        """Ask for a sign of life when none came for a while; a peer that gives none is lost."""
        loop, interval = asyncio.get_running_loop(), self._limits.heartbeat
        while self.open:
            silence = loop.time() - self._heard_at
            if silence >= 2 * interval:
                self.lose(f"gave no sign of life for {silence:.0f} s")
                await self._socket.aclose()
                return
            if silence >= interval:
                await self._try(Ping())
            await asyncio.sleep(interval - silence if silence < interval else min(interval, 2 * interval - silence))

    def _leave(self, exchange: Exchange) -> None:
        """The reader of an exchange is gone; frames that still come for it are nobody's."""
        self._exchanges.pop(exchange.id, None)
        if self.open:
            self._begin(self._try(Cancel(exchange.id)))

    async def _try(self, frame: Told) -> None:
        with contextlib.suppress(Lost):  # whoever listens hears of it, too
            await self._socket.send(encode_frame(frame))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
