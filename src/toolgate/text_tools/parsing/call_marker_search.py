"""Find all marks that may begin a call or reasoning in plain text, together.

Text without marks must cost next to nothing, so one compiled expression searches for all marks at once; whether the end of
the text may be the start of a mark is only asked when nothing was found. Knows no syntax.
"""

import re
from collections.abc import Sequence

from toolgate.text_tools.parsing.syntax import CallMarker

_LONGEST_PATTERN = 96  # characters that an unfinished marker may have; what is longer is text
# A code span in one line, `like this`, or else its first backtick alone, which `Scanner` then reads.
_SPAN = r"`(?:[^`\n]++`(?=[^`]))?"


class CallMarkerSearch:
    """Compiled markers; with `spans`, a complete code span is found as one match."""

    def __init__(self, markers: Sequence[CallMarker], spans: bool = True) -> None:
        anywhere = [marker for marker in markers if marker.at == "anywhere"]
        self._anywhere = _MarkerSet(anywhere)
        self._line = _MarkerSet([marker for marker in markers if marker.at != "start"])
        self._start = _MarkerSet(markers)
        lines = _first_chars([marker for marker in markers if marker.at == "line"]) + "~"  # a fence of tildes, too
        # Every branch begins with a plain character: only then does `re` skip text without trying them.
        ticks = [_SPAN if spans else "`", rf"\n[ \t]*+(?=[{lines}])"]
        self.search = re.compile("|".join([*ticks, *self._anywhere.branches])).search

    def found_marker(self, found: re.Match[str]) -> CallMarker | None:
        """Return the marker that `search` found; None if it found code or the start of a line."""
        return self._anywhere.marker(found[0], found.string, found.start())

    def at_line(self, text: str, at: int, at_start: bool) -> tuple[CallMarker, str] | None:
        """Return the marker at the start of a line and the text it matched; `at_start` if a message starts there."""
        return (self._start if at_start else self._line).match(text, at)

    def may_begin_line(self, text: str, at: int, at_start: bool) -> bool:
        """Return whether more text could make a marker of what stands at the start of a line."""
        return (self._start if at_start else self._line).is_partial(text[at : at + _LONGEST_PATTERN])

    def partial_at(self, text: str, at: int) -> int:
        """Return where the end of the text may be the start of a marker; the length of the text if nowhere."""
        return self._anywhere.partial_at(text, at)

    def is_certain(self, found: re.Match[str], at: int) -> bool:
        """Return whether no longer marker, of which not all has come, can contain the match."""
        text, start = found.string, found.start()
        return len(text) - start > self._anywhere.longest or self._anywhere.partial_at(text, at) >= start


class _MarkerSet:
    """Markers that count at the same places."""

    def __init__(self, markers: Sequence[CallMarker]) -> None:
        words = sorted([marker.word for marker in markers if marker.word], key=len, reverse=True)
        patterns = [marker.pattern for marker in markers if marker.pattern]
        self._words = {marker.word: marker for marker in markers if marker.word}
        self._patterns = [(re.compile(marker.pattern).match, marker) for marker in markers if marker.pattern]
        self.branches = [re.escape(word) for word in words] + patterns
        self._match = re.compile("|".join(self.branches) or r"(?!)").match
        self._word_starts = frozenset([word[:size] for word in words for size in range(1, len(word))])
        partials = "|".join([marker.partial for marker in markers if marker.partial])
        self._partial = re.compile(partials or r"(?!)").fullmatch
        self._first_chars = re.compile(f"[{_first_chars(markers)}]" if markers else r"(?!)").finditer
        self.longest = _LONGEST_PATTERN if partials else max([len(word) for word in words], default=0)

    def marker(self, found: str, text: str, at: int) -> CallMarker | None:
        if marker := self._words.get(found):
            return marker
        return next((marker for match, marker in self._patterns if match(text, at)), None)

    def match(self, text: str, at: int) -> tuple[CallMarker, str] | None:
        found = self._match(text, at)
        marker = self.marker(found[0], text, at) if found else None
        return (marker, found[0]) if found and marker else None

    def is_partial(self, rest: str) -> bool:
        return rest in self._word_starts or (len(rest) < _LONGEST_PATTERN and self._partial(rest) is not None)

    def partial_at(self, text: str, at: int) -> int:
        size = len(text)
        for first in self._first_chars(text, max(at, size - self.longest + 1)):
            if self.is_partial(text[first.start() :]):
                return first.start()
        return size


def _first_chars(markers: Sequence[CallMarker]) -> str:
    """Return the characters with which the markers begin, for a class in a regular expression."""
    firsts = {*"".join([marker.firsts or marker.word[0] for marker in markers])}
    return "".join([re.escape(char) for char in sorted(firsts)])
