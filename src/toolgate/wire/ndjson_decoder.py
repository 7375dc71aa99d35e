"""Decode newline-delimited JSON from bytes; a line that holds several objects is split between them."""

import json
import re

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.wire.received_stream_frames import MAX_FRAME, ReceivedStreamFrame, check_size

# Objects of one line: each is decoded here to find its end, and again by its reader.
MAX_GLUED = 1_000
# A longer line is left whole: to decode it here, on the event loop, could take some hundred milliseconds.
MAX_GLUED_BYTES = 512 * 1024
_BLANKS = re.compile(r"\s*+")


class NdjsonDecoder:
    """Splits a byte stream into JSON lines."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._pending_size = 0

    def feed(self, chunk: bytes) -> list[ReceivedStreamFrame]:
        """Return the lines that this chunk completes."""
        *lines, rest = chunk.split(b"\n")
        frames: list[ReceivedStreamFrame] = []
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

    def end(self) -> list[ReceivedStreamFrame]:
        """Return the last line, when the stream stopped without a newline behind it."""
        frames: list[ReceivedStreamFrame] = []
        _split(b"".join(self._pending), frames)
        self._pending.clear()
        return frames


def _split(line: bytes, frames: list[ReceivedStreamFrame]) -> None:
    """Add a frame for each JSON object in the line; text that is no JSON stays in one frame, for its decoder to reject."""
    line = line.strip()
    # Also found inside of strings: the decoder below sees the difference, and nearly all lines are spared from it.
    if len(line) > MAX_GLUED_BYTES or (b"}{" not in line and b"} {" not in line):
        if line:
            frames.append(ReceivedStreamFrame(None, line))
        return
    text, decoder, position, count = line.decode("utf-8", "replace"), json.JSONDecoder(), 0, 0
    while position < len(text):
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):  # no JSON, or a number of more digits than Python converts
            end = len(text)
        frames.append(ReceivedStreamFrame(None, text[position:end].encode()))
        count += 1
        if count > MAX_GLUED:
            raise InvalidUpstreamAnswer(f"The upstream sent a line of more than {MAX_GLUED} objects.")
        position = _BLANKS.match(text, end).end()  # type: ignore[union-attr]  # it matches everywhere
