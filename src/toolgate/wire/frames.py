"""A frame is one event of a stream as its framing carried it; framings cut bytes into frames, wherever the bytes split."""

from typing import NamedTuple, Protocol

from toolgate.conversation.errors import Garbled

MAX_FRAME = 16 * 1024 * 1024


class Frame(NamedTuple):
    """One event: its name, where the framing has names, and its payload."""

    event: str | None
    data: bytes


class FrameDecoder(Protocol):
    """Bytes in, frames out; any split of the bytes gives the same frames."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes."""

    def end(self) -> list[Frame]:
        """The last frame, when the stream stopped without terminating it."""


def check_size(size: int, limit: int) -> None:
    """Refuse a frame that would grow past the limit."""
    if size > limit:
        raise Garbled(f"The upstream sent a single event of more than {limit} bytes.")
