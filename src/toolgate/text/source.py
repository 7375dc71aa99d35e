"""Text that comes in pieces, read as if it were whole.

A reader is a generator: it takes what it needs from a `Source` and yields when it must wait for more. What it does depends
on the characters alone, never on where one piece ended and the next began. Every character is read once; only what could
still become one of the words looked for stays unread, so the buffer is as short as the longest word.

Knows no syntax, no tools and no events.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
Out: TypeAlias = Callable[[str], object]

_BLANKS = re.compile(r"[ \t\r\n]*")
_PATIENCE = 1024
"""Blanks to look past in the hope of a word; more than that is no layout any model writes."""


class Words:
    """Some words to be found in text, and the places where one of them may have begun."""

    def __init__(self, *words: str) -> None:
        longest_first = sorted(set(words), key=len, reverse=True)
        self.find = re.compile("|".join([re.escape(word) for word in longest_first])).search
        self._longest = len(longest_first[0])
        self._beginnings = frozenset([word[:size] for word in words for size in range(1, len(word))])
        firsts = "".join([re.escape(first) for first in sorted({word[0] for word in words})])
        self._firsts = re.compile(f"[{firsts}]").finditer

    def doubtful(self, text: str, at: int) -> int:
        """Where the end of the text may be the beginning of a word; its length if nowhere."""
        size = len(text)
        for first in self._firsts(text, max(at, size - self._longest + 1)):
            if text[first.start() :] in self._beginnings:
                return first.start()
        return size


@lru_cache(512)
def words(*them: str) -> Words:
    """The words, prepared once."""
    return Words(*them)


class Source:
    """What has come and is not read yet; what is read while `held` is a list is kept there, too."""

    __slots__ = ("at", "ended", "held", "taken", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.taken = 0  # characters read so far
        self.held: list[str] | None = None

    def push(self, text: str) -> None:
        """More text has come."""
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def push_back(self, text: str) -> None:
        """What was read is to be read again, before what has not been read."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def take(self, count: int) -> str:
        """So many characters, which must be there."""
        piece = self.text[self.at : self.at + count]
        self.at += len(piece)
        self.taken += len(piece)
        if self.held is not None:
            self.held.append(piece)
        return piece

    @property
    def over(self) -> bool:
        """Whether all is read and nothing more will come."""
        return self.ended and self.at >= len(self.text)

    def peek(self) -> Steps[str]:
        """The next character, unread; nothing at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def ahead(self, count: int) -> Steps[str]:
        """So many characters, unread; fewer at the end."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def word(self, word: str) -> Steps[bool]:
        """Reads the word if it comes next, and nothing otherwise."""
        while True:
            if self.text.startswith(word, self.at):
                self.take(len(word))
                return True
            if self.ended or len(self.text) - self.at >= len(word) or not word.startswith(self.text[self.at :]):
                return False
            yield

    def one_of(self, *candidates: str) -> Steps[str]:
        """Reads the one that comes next and returns it; where one begins another, the longer must stand first."""
        for candidate in candidates:
            if (yield from self.word(candidate)):
                return candidate
        return ""

    def sees(self, *candidates: str) -> Steps[bool]:
        """Whether one of these comes next; reads nothing."""
        while not self.text.startswith(candidates, self.at):
            rest = self.text[self.at :]
            if self.ended or not any(candidate.startswith(rest) for candidate in candidates):
                return False
            yield
        return True

    def run(self, chars: re.Pattern[str], limit: int = 4096) -> Steps[str]:
        """As many characters as the pattern, a repeated class, matches, up to the limit."""
        pieces: list[str] = []
        while True:
            found = chars.match(self.text, self.at)
            if found is not None and found.end() > self.at:
                pieces.append(self.take(min(found.end() - self.at, limit)))
                limit -= len(pieces[-1])
            if self.at < len(self.text) or self.ended or not limit:
                return "".join(pieces) if len(pieces) != 1 else pieces[0]
            yield

    def blanks(self) -> Steps[str]:
        """The blanks that come next."""
        return (yield from self.run(_BLANKS, 1 << 62))

    def until(self, stops: Words, out: Out) -> Steps[str]:
        """Hands on what comes before the first of the words, which is returned unread; nothing at the end."""
        while True:
            found = stops.find(self.text, self.at)
            end = found.start() if found else len(self.text) if self.ended else stops.doubtful(self.text, self.at)
            if end > self.at:
                out(self.take(end - self.at))
            if found or self.ended:
                return found.group() if found else ""
            yield

    def rest(self, out: Out) -> Steps[None]:
        """Hands on all that is left."""
        while not self.over:
            if self.at < len(self.text):
                out(self.take(len(self.text) - self.at))
            else:
                yield

    def only(self, skip: int, words: tuple[str, ...]) -> Steps[bool]:
        """Whether, past so many characters, nothing but blanks and one of the words comes up to the end; reads nothing."""
        while True:
            rest = self.text[self.at + skip : self.at + skip + _PATIENCE].strip(" \t\r\n")
            if rest and rest not in words and (self.ended or not any(word.startswith(rest) for word in words)):
                return False
            if self.ended:
                return len(self.text) - self.at - skip <= _PATIENCE
            if len(self.text) - self.at - skip > _PATIENCE:
                return False
            yield

    def followed(self, skip: int, by: tuple[str, ...]) -> Steps[bool]:
        """Whether, past so many characters and any blanks, one of the words or the end comes; reads nothing."""
        while True:
            found = _BLANKS.match(self.text, self.at + skip)
            at = found.end() if found else len(self.text)
            if self.text.startswith(by, at) or at - self.at - skip > _PATIENCE:
                return True
            rest = self.text[at:]
            if rest and not any(word.startswith(rest) for word in by):
                return False
            if self.ended:
                return True
            yield
