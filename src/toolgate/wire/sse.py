"""Server-sent events, from bytes.

Lines end in LF, CR or CRLF and in nothing else: U+2028 and its kin are text. A byte order mark, comments, missing blanks
after the colon, `data:` over several lines and a last event without its blank line are all in the standard or in the wild.
"""

import re

from toolgate.wire.frames import MAX_FRAME, Frame, check_size

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Cuts a byte stream into server-sent events."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._pending: list[bytes] = []  # pieces of a line that has not ended
        self._pending_size = 0
        self._event: str | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The events that this chunk completes."""
        if self._at_start:
            chunk = self._without_mark(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = chunk.split(b"\n") if b"\r" not in chunk else _LINE_END.split(chunk)
        frames: list[Frame] = []
        if lines:
            if self._pending:
                lines[0] = b"".join([*self._pending, lines[0]])
                self._pending.clear()
                self._pending_size = 0
            for line in lines:
                self._line(line, frames)
        if rest:
            self._pending.append(rest)
            self._pending_size += len(rest)
            check_size(self._size + self._pending_size, self._limit)
        return frames

    def end(self) -> list[Frame]:
        """The last event, when the stream stopped without a blank line behind it."""
        frames: list[Frame] = []
        if self._pending:
            self._line(b"".join(self._pending), frames)
            self._pending.clear()
        self._line(b"", frames)
        return frames

    def _without_mark(self, chunk: bytes) -> bytes:
        chunk = b"".join([*self._pending, chunk])
        self._pending.clear()
        self._pending_size = 0
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._pending.append(chunk)
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            if self._lines or self._event is not None:
                frames.append(Frame(self._event, self._lines[0] if len(self._lines) == 1 else b"\n".join(self._lines)))
                self._lines, self._event, self._size = [], None, 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._size += len(value) or 1  # an empty line takes room, too
            check_size(self._size, self._limit)
            self._lines.append(value)
        elif field == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")
