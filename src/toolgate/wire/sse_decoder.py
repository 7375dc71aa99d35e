"""Decode server-sent events from bytes.

Lines end in LF, CR or CRLF and in nothing else: U+2028 and similar characters are text. A byte order mark, comments, a
missing blank after the colon, `data:` over several lines and a last event without its blank line all occur in practice.
"""

import re

from toolgate.wire.received_stream_frames import MAX_FRAME, ReceivedStreamFrame, check_size

# A frame is one or more lines and a blank one: `event: message_stop\ndata: {"type": "message_stop"}\n\n`.
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_CR, _LF = b"\r\n"  # numbers, which are found in a seventh of the time that bytes take
# Counted for each line of an event beside its bytes: a short one takes so much memory, and joining many takes long.
_LINE_BYTES = 64


class SseDecoder:
    """Splits a byte stream into server-sent events."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._pending: list[bytes] = []  # chunks of a line that has not ended
        self._pending_size = 0
        self._event: str | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ReceivedStreamFrame]:
        """Return the events that this chunk completes."""
        if self._at_start:
            chunk = self._strip_bom(chunk)
        if self._after_cr and chunk:  # the CR has ended the line, and this LF belongs to it
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        frames: list[ReceivedStreamFrame] = []
        # Hardly any upstream sends CR, and splitting by fixed bytes is ten times faster.
        if _CR in chunk:
            self._after_cr = chunk.endswith(b"\r")
            *lines, rest = _LINE_END.split(chunk)
        else:
            # Nothing is pending, so the chunk begins with an event: `data: {…}\n\n` as a whole is the common case.
            if not self._pending and not self._lines and self._event is None:
                frames, chunk = self._read_events(chunk)
            *lines, rest = chunk.split(b"\n")
        if lines:
            if self._pending:
                lines[0] = b"".join([*self._pending, lines[0]])
                self._pending.clear()
                self._pending_size = 0
            frames += self._read(lines)
        if rest:
            self._pending.append(rest)
            self._pending_size += len(rest)
            check_size(self._size + self._pending_size, self._limit)
        return frames

    def end(self) -> list[ReceivedStreamFrame]:
        """Return the last event, when the stream stopped without a blank line behind it."""
        last = b"".join(self._pending)
        self._pending.clear()
        return self._read([last, b""])  # as if the missing blank line had come

    def _strip_bom(self, chunk: bytes) -> bytes:
        chunk = b"".join([*self._pending, chunk])
        self._pending.clear()
        self._pending_size = 0
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):  # the mark itself may come in two chunks
            self._pending.append(chunk)
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _read_events(self, chunk: bytes) -> tuple[list[ReceivedStreamFrame], bytes]:
        """Return the events with which a chunk begins, as long as each is one line of data, and the rest of the chunk."""
        *events, rest = chunk.split(b"\n\n")
        frames: list[ReceivedStreamFrame] = []
        for number, event in enumerate(events):
            if not event.startswith(b"data: ") or _LF in event or len(event) > self._limit:
                return frames, b"\n\n".join([*events[number:], rest])
            frames.append(ReceivedStreamFrame(None, event[6:]))
        return frames, rest

    def _read(self, lines: list[bytes]) -> list[ReceivedStreamFrame]:
        """Return the events that these lines complete."""
        frames: list[ReceivedStreamFrame] = []
        event, data, size, limit = self._event, self._lines, self._size, self._limit  # locals: every chunk passes here
        for line in lines:
            if not line:
                if data or event is not None:
                    frames.append(ReceivedStreamFrame(event, data[0] if len(data) == 1 else b"\n".join(data)))
                    event, data, size = None, [], 0
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                value = value.removeprefix(b" ")
                size += len(value) + _LINE_BYTES
                if size > limit:
                    check_size(size, limit)
                data.append(value)
            # `id`, `retry`, unknown fields and comments, whose field is empty, are not needed here.
            elif field == b"event":
                event = value.removeprefix(b" ").decode("utf-8", "replace")
        self._event, self._lines, self._size = event, data, size
        return frames
