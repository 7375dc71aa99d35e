"""Limit how deep JSON may be nested, by its text, before it is decoded. Decodes nothing.

Python has a limit of its own, but counts the caller's stack, too: what can just be decoded could not be encoded again
from elsewhere.
"""

from collections.abc import Iterator
from itertools import accumulate

# Lists and objects inside each other, of everything that is received; Python allows nearly twice as many.
MAX_DEPTH = 512

_SLICE_BYTES = 64 * 1024
# All bytes but the brackets. To remove them at once and count the rest is faster than one `bytes.count` for each.
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class JsonDepthCounter:
    """Follows how deep JSON is nested, from slice to slice of its text outside of strings."""

    def __init__(self, most: int) -> None:
        self.is_over = False  # whether it was ever deeper than `most`
        self._most = most
        self._depth = 0

    def feed(self, outside: bytes) -> int:
        """Return how many lists and objects begin in the next slice."""
        brackets = outside.translate(None, _NOT_BRACKETS)
        openings = brackets.count(b"[") + brackets.count(b"{")
        start, self._depth = self._depth, self._depth + 2 * openings - len(brackets)
        if start + openings > self._most:  # seldom: where they are, one by one
            self.is_over |= max(accumulate(map(_DEPTH_STEPS.__getitem__, brackets), initial=start)) > self._most
        return openings


def is_too_deep(text: bytes) -> bool:
    """Return whether JSON is nested deeper than `MAX_DEPTH`; brackets in strings do not count."""
    size = len(text)
    if size <= 2 * MAX_DEPTH:  # too short, since each level takes two brackets: nearly every event of a stream
        return False
    # `replace` finds the few brackets of most texts in a tenth of the time that `count` takes, and stops at the limit.
    most = MAX_DEPTH + 1
    openings = 2 * size - len(text.replace(b"[", b"", most)) - len(text.replace(b"{", b"", most))
    return openings > MAX_DEPTH and is_deeper(text, MAX_DEPTH)


def is_deeper(text: bytes, levels: int) -> bool:
    """Return whether JSON is nested deeper than this; brackets in strings do not count."""
    depth = JsonDepthCounter(levels)
    for outside, _ in outside_strings(text):
        depth.feed(outside)
    return depth.is_over


def outside_strings(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the text outside of strings and the number of quotation marks, slice by slice."""
    inside, rest = 0, b""
    for start in range(0, len(text), _SLICE_BYTES):
        chunk = rest + text[start : start + _SLICE_BYTES]
        cut = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2  # an escape is not cut in two
        chunk, rest = (chunk[:-1], b"\\") if cut else (chunk, b"")
        # Without escaped backslashes and quotation marks, every mark that is left begins or ends a string: of the pieces
        # between them every other one is outside.
        between_quotes = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(between_quotes[inside::2]), len(between_quotes) - 1
        inside ^= (len(between_quotes) - 1) & 1
