"""All marks that may begin something in plain text, found together.

Text without marks must cost next to nothing, so one compiled expression looks for all of them at once; only at the end of
what has come is it asked what could still become one. Knows no syntax.
"""

import re
from collections.abc import Sequence

from toolgate.text.syntax import Opener

_LONGEST_PATTERN = 96
_SPAN = r"`(?:[^`\n]++`(?=[^`]))?"


class Openers:
    """Some openers, ready to be looked for; with `spans`, a code span that has come whole is found in one piece."""

    def __init__(self, openers: Sequence[Opener], spans: bool = True) -> None:
        anywhere = [opener for opener in openers if opener.at == "anywhere"]
        self._anywhere = _Set(anywhere)
        self._line = _Set([opener for opener in openers if opener.at != "start"])
        self._start = _Set(openers)
        lines = _firsts([opener for opener in openers if opener.at == "line"]) + "~"  # a fence of tildes, too
        # Every branch begins with a plain character: only then does `re` skip text without trying them.
        ticks = [_SPAN if spans else "`", rf"\n[ \t]*+(?=[{lines}])"]
        self.search = re.compile("|".join([*ticks, *self._anywhere.branches])).search

    def opened(self, found: re.Match[str]) -> Opener | None:
        """The opener that `search` found; None if it found code or the beginning of a line."""
        return self._anywhere.opener(found[0], found.string, found.start())

    def at_line(self, text: str, at: int, fresh: bool) -> tuple[Opener, str] | None:
        """The opener at this place, where a line begins; `fresh` if a message does."""
        return (self._start if fresh else self._line).at(text, at)

    def undecided_line(self, text: str, at: int, fresh: bool) -> bool:
        """Whether what stands here, where a line begins, may become an opener."""
        return (self._start if fresh else self._line).begins(text[at : at + _LONGEST_PATTERN])

    def doubtful(self, text: str, at: int) -> int:
        """Where the end of the text may be the beginning of an opener; its length if nowhere."""
        return self._anywhere.doubtful(text, at)

    def certain(self, found: re.Match[str], at: int) -> bool:
        """Whether what was found stands inside nothing longer that has not come whole."""
        text, start = found.string, found.start()
        return len(text) - start > self._anywhere.reach or self._anywhere.doubtful(text, at) >= start


class _Set:
    """Openers that count in the same place."""

    def __init__(self, openers: Sequence[Opener]) -> None:
        words = sorted([opener.word for opener in openers if opener.word], key=len, reverse=True)
        self._words = {opener.word: opener for opener in openers if opener.word}
        self._patterns = [(re.compile(opener.pattern).match, opener) for opener in openers if opener.pattern]
        self.branches = [re.escape(word) for word in words] + [opener.pattern for opener in openers if opener.pattern]
        self._match = re.compile("|".join(self.branches) or r"(?!)").match
        self._beginnings = frozenset([word[:size] for word in words for size in range(1, len(word))])
        partials = "|".join([opener.partial for opener in openers if opener.partial])
        self._partial = re.compile(partials or r"(?!)").fullmatch
        self._firsts = re.compile(f"[{_firsts(openers)}]" if openers else r"(?!)").finditer
        longest = max([len(word) for word in words], default=0)
        self.reach = _LONGEST_PATTERN if partials else longest

    def opener(self, found: str, text: str, at: int) -> Opener | None:
        if opener := self._words.get(found):
            return opener
        return next((opener for match, opener in self._patterns if match(text, at)), None)

    def at(self, text: str, at: int) -> tuple[Opener, str] | None:
        found = self._match(text, at)
        opener = self.opener(found[0], text, at) if found else None
        return (opener, found[0]) if found and opener else None

    def begins(self, rest: str) -> bool:
        return rest in self._beginnings or (len(rest) < _LONGEST_PATTERN and self._partial(rest) is not None)

    def doubtful(self, text: str, at: int) -> int:
        size = len(text)
        for first in self._firsts(text, max(at, size - self.reach + 1)):
            if self.begins(text[first.start() :]):
                return first.start()
        return size


def _firsts(openers: Sequence[Opener]) -> str:
    """The characters with which these begin, for a class in a regular expression."""
    return "".join([re.escape(char) for char in sorted({*"".join([o.firsts or o.word[0] for o in openers])})])
