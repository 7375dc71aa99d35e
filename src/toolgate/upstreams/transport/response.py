"""Read a response: status, headers, and the body whole or piece by piece, within the size limits."""

import asyncio
import warnings
import zlib
from collections.abc import Mapping
from io import BytesIO

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.upstreams.transport.inflate import CODINGS, ResponseInflater
from toolgate.upstreams.transport.limits import ResponseSizeLimits, size
from toolgate.upstreams.transport.response_reader import ResponseReader

# How long the end of a body may take after its last event, such as `data: [DONE]`: usually one more chunk of no bytes.
_GRACE_SECONDS = 0.25


class UpstreamResponse:
    """A response whose head has arrived; read it to the end or `aclose` it.

    If it ends too early (the connection is lost, or a limit of size or time is reached), that is raised after everything
    that was received before has been returned.
    """

    __slots__ = (
        "_cap",
        "_caps",
        "_coding",
        "_inflate",
        "_plain",
        "_read",
        "_reader",
        "_released",
        "headers",
        "status",
    )

    def __init__(self, reader: ResponseReader, caps: ResponseSizeLimits) -> None:
        self.status = reader.status
        self.headers: Mapping[str, str] = reader.headers
        self._reader = reader
        self._caps = caps
        self._cap = caps.stream
        self._read = 0
        self._released = False
        coding = reader.headers.get("content-encoding")
        self._coding = "" if coding is None else coding.lower()
        self._plain = coding is None or self._coding in ("", "identity")
        # We ask for `identity`, but some servers and proxies compress nevertheless.
        self._inflate = None if self._plain or self._coding not in CODINGS else ResponseInflater(self._coding)

    def __aiter__(self) -> "UpstreamResponse":
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece of the body, as much as has arrived; never empty."""
        reader = self._reader
        while True:
            piece = reader.take() if self._plain else await self._inflated()
            if piece:
                self._read += len(piece)
                if self._read > self._cap:
                    raise self._over()
                return piece
            if reader.connection is None:
                if self._reader.error is not None:
                    raise self._reader.error
                if self._inflate is not None and not self._inflate.finished:
                    raise self._broken(f"ended its {self._coding} body in the middle")
                raise StopAsyncIteration
            await reader.arrival()

    def take_whole(self) -> bytes | None:
        """Return the whole body if it has arrived, as short ones mostly do with their head; else `read` waits for it."""
        reader = self._reader
        return reader.take() if reader.complete and self._plain and reader.size <= self._caps.whole else None

    async def read(self) -> bytes:
        """Return the whole body, or the rest that has not been read."""
        self._cap = self._caps.whole
        arrived = self.take_whole()
        if arrived is not None:
            return arrived
        # The parser has refused a content-length that is no number.
        if self._cap < int(self.headers.get("content-length", "0")):
            raise self._over()
        with BytesIO() as whole:  # closed, so that the traceback of a failure does not keep megabytes alive
            async for piece in self:
                whole.write(piece)
            return whole.getvalue()

    def release(self) -> None:
        """Release a response whose content is complete: the socket is kept if its end follows at once."""
        connection = self._reader.connection
        if connection is not None:
            self._released = True
            connection.loop.call_later(_GRACE_SECONDS, self._reader.abandon)

    async def aclose(self) -> None:
        """Close the response: the socket is closed at once, unless the end has arrived or the response was released."""
        if not self._released:
            self._reader.abandon()

    def __del__(self) -> None:
        # A response that was dropped unread would occupy its connection, and its slot, until a timeout.
        # The garbage collector may run in another thread, so that the loop does the closing.
        connection = self._reader.connection
        if connection is not None and not self._released and not connection.loop.is_closed():
            warnings.warn(
                f"a reply of {connection.upstream} was neither read nor closed", ResourceWarning, stacklevel=1
            )
            connection.loop.call_soon_threadsafe(self._reader.abandon)

    async def _inflated(self) -> bytes:
        reader, inflate = self._reader, self._inflate
        if inflate is None:  # a coding that is unknown here, such as br; it does not matter if there is no body
            if reader.size:
                raise self._broken("sent its body in a content-encoding that was not asked for")
            return b""
        try:
            piece = inflate.more()
            while not piece and (compressed := reader.take()):
                inflate.feed(compressed)
                piece = inflate.more()
        except zlib.error:
            raise self._broken(f"sent a body that is not {self._coding} as its header says") from None
        if reader.size > self._cap:
            raise self._over()
        if piece:  # a few bytes can inflate to megabytes: other tasks run in between
            try:
                await asyncio.sleep(0)
            except BaseException:
                self._reader.abandon()
                raise
        return piece

    def _over(self) -> InvalidUpstreamAnswer:
        return self._broken(f"sent a body larger than {size(self._cap)}")

    def _broken(self, what: str) -> InvalidUpstreamAnswer:
        self._reader.abandon()
        return InvalidUpstreamAnswer(f"{self._reader.upstream} {what}")
