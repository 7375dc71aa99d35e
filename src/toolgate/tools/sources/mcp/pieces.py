"""A byte stream cut into lines, within bounds, and a measure for those who say too much. Reads nothing itself."""

from collections.abc import Callable
from typing import NamedTuple

LONGEST_LINE = 4 * 1024 * 1024
TOO_LARGE = f"the answer is larger than {LONGEST_LINE // 1024**2} MiB"
LARGE = 64 * 1024
"""Bytes of a message above which it is decoded in a thread."""

A_STEP = 256
"""Messages that one step of the event loop deals with."""

_PER_SECOND = 10_000
_BYTES_PER_SECOND = 16 * 1024 * 1024
_TAIL = 4096
ENDS = 128


class Overlong(NamedTuple):
    """A line that was too long to keep: how it began and how it ended."""

    head: bytes
    tail: bytes


class Lines:
    """Cuts bytes into lines; of one that is too long only the ends are kept."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._pending: list[bytes] = []
        self._size = 0
        self._overlong: Overlong | None = None

    def feed(self, chunk: bytes) -> list[bytes | Overlong]:
        """The lines that this chunk completes, without their ends and without empty ones."""
        *ended, rest = chunk.split(b"\n")
        found: list[bytes | Overlong] = []
        for piece in ended:
            self._take(piece)
            line = self._overlong or b"".join(self._pending).strip()
            if line:
                found.append(line)
            self._pending.clear()
            self._size, self._overlong = 0, None
        if rest:
            self._take(rest)
        return found

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._overlong is not None:
            self._overlong = Overlong(self._overlong.head, (self._overlong.tail + piece)[-ENDS:])
        elif self._size > self._longest:
            whole = b"".join([*self._pending, piece])
            self._overlong = Overlong(whole[:ENDS], whole[-ENDS:])
            self._pending.clear()
        else:
            self._pending.append(piece)


class Tail:
    """The last few kilobytes of a stream of words."""

    def __init__(self, size: int = _TAIL) -> None:
        self._size = size
        self._kept = b""

    def feed(self, chunk: bytes) -> None:
        """Keep the end of what was said."""
        self._kept = (self._kept + chunk[-self._size :])[-self._size :]

    def __str__(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()


class Measure:
    """How long to stop listening to somebody who has said more than ten thousand things, or 16 MiB, within a second."""

    def __init__(
        self, clock: Callable[[], float], per_second: int = _PER_SECOND, bytes_per_second: int = _BYTES_PER_SECOND
    ) -> None:
        self._clock = clock
        self._per_second = per_second
        self._bytes_per_second = bytes_per_second
        self._since = clock()
        self._count = self._size = 0

    def pause(self, heard: int, size: int = 0) -> float:
        """Seconds to wait after `heard` more things of `size` bytes together; mostly none."""
        now = self._clock()
        if now - self._since >= 1.0:
            self._since, self._count, self._size = now, 0, 0
        self._count += heard
        self._size += size
        if self._count <= self._per_second and self._size <= self._bytes_per_second:
            return 0.0
        return max(0.0, self._since + 1.0 - now)


def printable(words: str, longest: int = 300) -> str:
    """Foreign words on one line, without anything that could play tricks on a terminal; the end if they are long."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
    return line if len(line) <= longest else f"…{line[-longest:]}"
