"""Decompress gzip and deflate in portions, so that a small body cannot become a large one at once."""

import zlib

# Bytes of output at a time: a body of 1 MiB can inflate to 1 GiB, and the reader checks its limit after each portion.
PORTION = 128 * 1024
# zlib's `wbits`: 15 is the largest window in zlib's container, 16 more means gzip's, and a minus sign means none.
CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_RAW_DEFLATE = -15


class ResponseInflater:
    """One compressed body: add input with `feed`, then take output with `more` until it is empty."""

    def __init__(self, coding: str) -> None:
        self._wbits = CODINGS[coding]
        self._input = b""
        self._stream: zlib._Decompress | None = None

    def feed(self, piece: bytes) -> None:
        """Add input."""
        self._input = self._input + piece if self._input else piece

    def more(self) -> bytes:
        """Return at most PORTION bytes, or none when more input is needed; raises zlib.error on bad input."""
        if self._stream is None:
            if len(self._input) < 2:
                return b""
            # "deflate" means zlib's container, yet some servers send the bare stream: its first two bytes differ.
            # In the container they are method 8 and a check sum that makes both, as one number, a multiple of 31.
            first, second = self._input[0], self._input[1]
            bare = first & 0x0F != 8 or (first << 8 | second) % 31
            wbits = _RAW_DEFLATE if self._wbits == CODINGS["deflate"] and bare else self._wbits
            self._stream = zlib.decompressobj(wbits)
        if not self._input:
            return b""
        output = self._stream.decompress(self._input, PORTION)
        self._input = self._stream.unconsumed_tail
        # A second gzip member would be dropped in silence, and with it a part of the answer.
        if self._stream.unused_data:
            raise zlib.error("bytes after the end")
        return output

    @property
    def finished(self) -> bool:
        """Whether the compressed stream has reached its end; an empty body counts as ended."""
        return not self._input if self._stream is None else self._stream.eof
