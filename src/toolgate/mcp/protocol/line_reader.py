"""Split a byte stream into lines within limits, and throttle a peer that sends too much. Does no I/O."""

from collections.abc import Callable
from typing import NamedTuple

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
TOO_LARGE = f"the answer is larger than {MAX_MESSAGE_BYTES // 1024**2} MiB"
# A larger message is decoded in a thread, a smaller one takes less time than handing it over.
LARGE = 64 * 1024
# Messages handled in one step of the event loop, so that other requests wait a few milliseconds at most.
MESSAGES_PER_STEP = 256
# Bytes kept of either end of an overlong line, enough to find the id of the response.
KEPT_ENDS = 128
_MESSAGES_PER_SECOND = 10_000
_BYTES_PER_SECOND = 16 * 1024 * 1024
_TAIL_BYTES = 4096


class TruncatedLine(NamedTuple):
    """The first and the last bytes of a line that was too long to keep."""

    head: bytes
    tail: bytes


class LineReader:
    """Splits chunks into lines; of a line that is too long only the ends are kept."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._size = 0
        self._overlong: TruncatedLine | None = None

    def feed(self, chunk: bytes) -> list[bytes | TruncatedLine]:
        """Return the lines that this chunk completes, stripped and without empty ones."""
        *completed, rest = chunk.split(b"\n")
        lines: list[bytes | TruncatedLine] = []
        for piece in completed:
            self._append(piece)
            line = self._overlong or b"".join(self._pending).strip()
            if line:
                lines.append(line)
            self._pending.clear()
            self._size, self._overlong = 0, None
        if rest:
            self._append(rest)
        return lines

    def _append(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._overlong is not None:  # the rest of the line passes through without being kept
            self._overlong = TruncatedLine(self._overlong.head, (self._overlong.tail + piece)[-KEPT_ENDS:])
        elif self._size > self._max_bytes:
            line = b"".join([*self._pending, piece])
            self._overlong = TruncatedLine(line[:KEPT_ENDS], line[-KEPT_ENDS:])
            self._pending.clear()
        else:
            self._pending.append(piece)


class TailBuffer:
    """Keeps the last few kilobytes of a stream of text."""

    def __init__(self, size: int = _TAIL_BYTES) -> None:
        self._size = size
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Append a chunk and drop what no longer fits."""
        self._tail = (self._tail + chunk[-self._size :])[-self._size :]

    def __str__(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()


class McpReadRateLimit:
    """Limits the messages and bytes that are read from a peer per second."""

    def __init__(
        self,
        clock: Callable[[], float],
        per_second: int = _MESSAGES_PER_SECOND,
        bytes_per_second: int = _BYTES_PER_SECOND,
    ) -> None:
        self._clock = clock
        self._per_second = per_second
        self._bytes_per_second = bytes_per_second
        self._since = clock()
        self._count = self._size = 0

    def pause(self, count: int, size: int = 0) -> float:
        """Count messages and their bytes, and return the seconds for which to stop reading, mostly 0."""
        now = self._clock()
        if now - self._since >= 1.0:
            self._since, self._count, self._size = now, 0, 0
        self._count += count
        self._size += size
        if self._count <= self._per_second and self._size <= self._bytes_per_second:
            return 0.0
        return max(0.0, self._since + 1.0 - now)


def printable(text: str, max_chars: int = 300) -> str:
    """Return untrusted text on one line, safe for a terminal; of long text only the end."""
    # Escape sequences could rewrite what a terminal shows; the end of stderr mostly has the error.
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= max_chars else f"…{line[-max_chars:]}"
