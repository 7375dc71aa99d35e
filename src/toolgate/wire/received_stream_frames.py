"""Define frames, the events of a stream as bytes, and the protocol of decoders that split a byte stream into them."""

from typing import Protocol

from msgspec import Struct

from toolgate.conversation.errors import InvalidUpstreamAnswer

# An upstream that never ends its event must not fill the memory; a long one may carry a whole image.
MAX_FRAME = 16 * 1024 * 1024


class ReceivedStreamFrame(Struct, frozen=True, gc=False):  # it can be in no cycle, and there is one for every delta
    """One event: its name, where the framing has names, and its payload."""

    event: str | None
    data: bytes


class EventFrameDecoder(Protocol):
    """Splits a byte stream into frames; the frames do not depend on how the bytes are cut into chunks."""

    def feed(self, chunk: bytes) -> list[ReceivedStreamFrame]:
        """Return the frames that this chunk completes."""

    def end(self) -> list[ReceivedStreamFrame]:
        """Return the last frame, when the stream stopped without terminating it."""


def check_size(size: int, limit: int) -> None:
    """Raise InvalidUpstreamAnswer for a frame that grows past the limit."""
    if size > limit:
        raise InvalidUpstreamAnswer(f"The upstream sent a single event of more than {limit} bytes.")
