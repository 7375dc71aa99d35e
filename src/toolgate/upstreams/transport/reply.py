"""What the caller reads of an answer: status, headers, and the body whole or piece by piece, within the caps."""

import asyncio
import warnings
import zlib
from collections.abc import Mapping
from io import BytesIO

from toolgate.conversation.errors import Garbled
from toolgate.upstreams.transport.incoming import Incoming
from toolgate.upstreams.transport.inflate import CODINGS, Inflate
from toolgate.upstreams.transport.limits import Caps, size

_GRACE_SECONDS = 0.25


class Reply:
    """An answer whose head has arrived; read it to the end or `aclose` it.

    Whatever ends it too early (a cut, a cap, a limit) raises, after all that came before has been handed over.
    """

    __slots__ = (
        "_cap",
        "_caps",
        "_coding",
        "_incoming",
        "_inflate",
        "_plain",
        "_read",
        "_released",
        "headers",
        "status",
    )

    def __init__(self, incoming: Incoming, caps: Caps) -> None:
        self.status = incoming.status
        self.headers: Mapping[str, str] = incoming.headers
        self._incoming = incoming
        self._caps = caps
        self._cap = caps.stream
        self._read = 0
        self._released = False
        self._coding = incoming.headers.get("content-encoding", "").lower()
        self._plain = not self._coding or self._coding == "identity"
        self._inflate = Inflate(self._coding) if self._coding in CODINGS else None

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> bytes:
        """The next piece of the body, as much as is here; never empty."""
        incoming = self._incoming
        while True:
            piece = incoming.take() if self._plain else await self._inflated()
            if piece:
                self._read += len(piece)
                if self._read > self._cap:
                    raise self._over()
                return piece
            if incoming.line is None:
                self._check_end()
                raise StopAsyncIteration
            await incoming.arrival()

    async def read(self) -> bytes:
        """The whole body, or what has not been read of it."""
        self._cap = self._caps.whole
        if self._plain and self._incoming.complete and self._incoming.size <= self._cap:
            return self._incoming.take()
        if self._cap < self._declared():
            raise self._over()
        with BytesIO() as whole:  # closed, so that the traceback of a failure does not keep megabytes alive
            async for piece in self:
                whole.write(piece)
            return whole.getvalue()

    def release(self) -> None:
        """Be done with an answer that said all it had to say: the socket is kept if the end follows at once."""
        line = self._incoming.line
        if line is not None:
            self._released = True
            line.loop.call_later(_GRACE_SECONDS, self._incoming.abandon)

    async def aclose(self) -> None:
        """Be done with the answer; unless it was released, or its end has arrived, the socket is closed at once."""
        if not self._released:
            self._incoming.abandon()

    def __del__(self) -> None:
        # A reply that was dropped unread would keep its connection, and its slot, until a timeout.
        line = self._incoming.line
        if line is not None and not self._released and not line.loop.is_closed():
            warnings.warn(f"a reply of {line.upstream} was neither read nor closed", ResourceWarning, stacklevel=1)
            line.loop.call_soon_threadsafe(self._incoming.abandon)

    async def _inflated(self) -> bytes:
        incoming, inflate = self._incoming, self._inflate
        if inflate is None:
            if incoming.size:
                raise self._broken("sent its body in a content-encoding that was not asked for")
            return b""
        try:
            piece = inflate.more()
            while not piece and (compressed := incoming.take()):
                inflate.feed(compressed)
                piece = inflate.more()
        except zlib.error:
            raise self._broken(f"sent a body that is not {self._coding} as its header says") from None
        if incoming.size > self._cap:
            raise self._over()
        if piece:  # a few bytes can hold megabytes: let others have their turn in between
            await self._breathe()
        return piece

    async def _breathe(self) -> None:
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._incoming.abandon()
            raise

    def _check_end(self) -> None:
        if self._incoming.error is not None:
            raise self._incoming.error
        if self._inflate is not None and not self._inflate.finished:
            raise self._broken(f"ended its {self._coding} body in the middle")

    def _declared(self) -> int:
        return int(self.headers.get("content-length", "0"))

    def _over(self) -> Garbled:
        return self._broken(f"sent a body larger than {size(self._cap)}")

    def _broken(self, what: str) -> Garbled:
        self._incoming.abandon()
        return Garbled(f"{self._incoming.upstream} {what}")
