"""Frames over a socket, in both directions, until one side closes it.

Knows frames and a socket that carries messages; it must not know what frames mean.
"""

from collections.abc import Callable
from typing import Protocol

from toolgate.bridge.frames import LARGE_FRAME, FromEditor, ToEditor, decode_frame_and_text, encode_frame
from toolgate.engine.json_thread import run_in_thread


class BridgeProtocolError(Exception):
    """The other side may not go on: the connection is closed with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class BridgeSocket(Protocol):
    """The socket, as far as the bridge uses it."""

    gone: bool

    @property
    def has_messages(self) -> bool:
        """Whether a message waits for `receive`."""

    def handle_at_once(self, handle: Callable[[bytes], bool]) -> None:
        """Offer every message to `handle` as soon as it is read; one that it does not take waits for `receive`."""

    async def receive(self) -> bytes | None:
        """Return the next message; None if the connection is gone or `wake` was called."""

    async def send(self, *texts: bytes) -> None:
        """Send messages, after the other side has read enough of what was sent before."""

    def write(self, *texts: bytes) -> None:
        """Send messages at once."""

    def wake(self) -> None:
        """Let `receive` return."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""


class FrameConnection:
    """One connection; nothing is sent or received any more once it is ending."""

    def __init__(self, socket: BridgeSocket) -> None:
        self._socket = socket
        self._ending: tuple[int, str] | None = None
        self._at_once = False  # whether nothing that was received before is still to be handled

    @property
    def open(self) -> bool:
        """Whether frames can be sent."""
        return self._ending is None and not self._socket.gone

    @property
    def ending(self) -> str | None:
        """Why the connection is closed by this side; None if it is not."""
        return self._ending[1] if self._ending is not None else None

    def end(self, code: int, reason: str) -> None:
        """Close the connection soon; the first reason counts."""
        self._ending = self._ending or (code, reason)
        self._socket.wake()

    async def aclose(self) -> None:
        """Close the connection."""
        code, reason = self._ending or (1000, "")
        await self._socket.close(code, reason)

    def write(self, frame: ToEditor) -> None:
        """Send a short frame at once."""
        if self.open:
            self._socket.write(encode_frame(frame))

    async def send(self, frame: bytes) -> None:
        """Send a frame that is encoded already, after the other side has read enough of what was sent before."""
        await self._socket.send(frame)

    async def receive(self) -> tuple[FromEditor, bytes] | None:
        """Return the next frame and its text, without those of unknown types; None once the connection is over."""
        while self.open:
            self._at_once = not self._socket.has_messages
            received = await self._socket.receive()
            self._at_once = False
            if received is not None:
                if len(received) <= LARGE_FRAME:
                    frame, text = decode_frame_and_text(received)
                else:
                    frame, text = await run_in_thread(decode_frame_and_text, received)
                if frame is not None and self._ending is None:
                    return frame, text
                del received, text  # they may be large, and are not kept while the next one is waited for
        return None

    def handle_at_once(self, handle: Callable[[bytes], bool]) -> None:
        """Offer short frames to `handle` as they arrive, in their order; what it does not take is received later."""

        def offer(text: bytes) -> bool:
            # Once a frame was not taken, those behind it wait, too, or they would overtake it.
            self._at_once = self._at_once and len(text) <= LARGE_FRAME and self._ending is None and handle(text)
            return self._at_once

        self._socket.handle_at_once(offer)
