"""JSON objects one a line, from bytes; a line that holds several is cut between them."""

import json
import re

from toolgate.conversation.errors import Garbled
from toolgate.wire.frames import MAX_FRAME, Frame, check_size

MAX_GLUED = 1_000
_BLANKS = re.compile(r"\s*+")


class NdjsonDecoder:
    """Cuts a byte stream into JSON lines."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._pending_size = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that this chunk completes."""
        *lines, rest = chunk.split(b"\n")
        frames: list[Frame] = []
        if lines:
            lines[0] = b"".join([*self._pending, lines[0]])
            self._pending.clear()
            self._pending_size = 0
            for line in lines:
                _split(line, frames)
        if rest:
            self._pending.append(rest)
            self._pending_size += len(rest)
            check_size(self._pending_size, self._limit)
        return frames

    def end(self) -> list[Frame]:
        """The last line, when the stream stopped without a newline behind it."""
        frames: list[Frame] = []
        _split(b"".join(self._pending), frames)
        self._pending.clear()
        return frames


def _split(line: bytes, frames: list[Frame]) -> None:
    line = line.strip()
    if b"}{" not in line and b"} {" not in line:
        if line:
            frames.append(Frame(None, line))
        return
    frames += [Frame(None, text.encode()) for text in _objects(line.decode("utf-8", "replace"))]


def _objects(text: str) -> list[str]:
    """The JSON texts glued together in one line; what is no JSON stays in one piece, for the decoder to refuse."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text):
        try:
            _, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            end = len(text)
        found.append(text[position:end])
        if len(found) > MAX_GLUED:
            raise Garbled(f"The upstream sent a line of more than {MAX_GLUED} objects.")
        position = _BLANKS.match(text, end).end()  # type: ignore[union-attr]  # it matches everywhere
    return found
