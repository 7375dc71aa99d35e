"""Define frames, the events of a stream as bytes, and the protocol of decoders that split a byte stream into them."""

from typing import Protocol

from msgspec import Struct

from toolgate.conversation.errors import InvalidUpstreamAnswer

MAX_FRAME = 16 * 1024 * 1024


class StreamFrame(Struct, frozen=True, gc=False):
    """One event: its name, where the framing has names, and its payload."""

    event: str | None
    data: bytes


class EventFrameDecoder(Protocol):
    """Splits a byte stream into frames; the frames do not depend on how the bytes are cut into chunks."""

    def feed(self, chunk: bytes) -> list[StreamFrame]:
        """Return the frames that this chunk completes."""

    def end(self) -> list[StreamFrame]:
        """Return the last frame, when the stream stopped without terminating it."""


def check_size(size: int, limit: int) -> None:
    """Raise InvalidUpstreamAnswer for a frame that grows past the limit."""
    if size > limit:
        raise InvalidUpstreamAnswer(f"The upstream sent a single event of more than {limit} bytes.")
