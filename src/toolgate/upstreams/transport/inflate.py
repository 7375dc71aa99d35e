"""Decompress gzip and deflate in portions, so that a small body cannot become a large one at once."""

import zlib

# Bytes of output at a time: a body of 1 MiB can inflate to 1 GiB, and the reader checks its limit after each portion.
PORTION = 128 * 1024
# zlib's `wbits`: 15 is the largest window in zlib's container, 16 more means gzip's, and a minus sign means none.
CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_RAW_DEFLATE = -15
# Bytes of input at a time: zlib copies those behind the end of a gzip member, and there may be a member every 20 bytes.
_SLICE_BYTES = 16 * 1024
# Gzip members without content, one behind another: they take time and bring nothing.
_MAX_EMPTY_MEMBERS = 100


class ResponseInflater:
    """One compressed body: add input with `feed`, then take output with `more` until it is empty."""

    def __init__(self, coding: str) -> None:
        self._wbits = CODINGS[coding]
        self._input = b""
        self._at = 0  # of the input, what follows
        self._stream: zlib._Decompress | None = None  # None before a gzip member or the whole body
        self._empty_members = 0

    def feed(self, piece: bytes) -> None:
        """Add input."""
        self._input, self._at = self._input[self._at :] + piece, 0

    def more(self) -> bytes:
        """Return at most PORTION bytes, or none when more input is needed; raises zlib.error on bad input."""
        while self._at < len(self._input):
            if self._stream is None:
                if len(self._input) - self._at < 2:
                    break
                self._stream = self._begin()
            given = self._input[self._at : self._at + _SLICE_BYTES]
            output = self._stream.decompress(given, PORTION)
            self._at += len(given) - len(self._stream.unconsumed_tail) - len(self._stream.unused_data)
            if (
                self._stream.eof and self._wbits == CODINGS["gzip"]
            ):  # another member may follow, which is more of the body
                self._stream = None
                self._empty_members = 0 if output else self._empty_members + 1
                if self._empty_members > _MAX_EMPTY_MEMBERS:
                    raise zlib.error("empty members without end")
            elif self._stream.unused_data:
                raise zlib.error("bytes after the end")
            if output:
                return output
        return b""

    def _begin(self) -> "zlib._Decompress":
        # "deflate" means zlib's container, yet some servers send the bare stream: its first two bytes differ.
        # In the container they are method 8 and a check sum that makes both, as one number, a multiple of 31.
        first, second = self._input[self._at : self._at + 2]
        bare = first & 0x0F != 8 or (first << 8 | second) % 31
        return zlib.decompressobj(_RAW_DEFLATE if self._wbits == CODINGS["deflate"] and bare else self._wbits)

    @property
    def finished(self) -> bool:
        """Whether the compressed stream has reached its end; an empty body counts as ended."""
        return self._at == len(self._input) if self._stream is None else self._stream.eof
