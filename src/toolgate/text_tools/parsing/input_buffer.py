"""Read text that comes in pieces as if it were whole.

A reader is a generator: it takes what it needs from an `InputBuffer` and yields when it must wait for more. What it does
depends on the characters alone, never on where one piece ended and the next began. Every character is read once; only what
may still become one of the words searched for stays unread, so the buffer is as short as the longest word.

Knows no syntax, no tools and no events.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")
# A parse under way: it yields when it needs more text, and returns its result.
Parse: TypeAlias = Generator[None, None, _T]

TextSink: TypeAlias = Callable[[str], object]

_BLANKS = re.compile(r"[ \t\r\n]*")
_MAX_BLANKS = 1024  # to skip while looking ahead; no model writes more than that as layout


class PartialWordMatcher:
    """Words to search for in text, which may end within one of them."""

    def __init__(self, *word_set: str) -> None:
        # The first alternative that matches wins, so the longer of two words that begin alike must stand first.
        longest_first = sorted(set(word_set), key=len, reverse=True)
        self.find = re.compile("|".join([re.escape(word) for word in longest_first])).search
        self._longest = len(longest_first[0])
        self._starts = frozenset([word[:size] for word in word_set for size in range(1, len(word))])
        firsts = "".join([re.escape(first) for first in sorted({word[0] for word in word_set})])
        self._firsts = re.compile(f"[{firsts}]").finditer

    def partial_at(self, text: str, at: int) -> int:
        """Return where the end of the text may be the start of a word; the length of the text if nowhere."""
        size = len(text)
        # An unfinished word is shorter than the longest one, so only the last characters are looked at.
        for first in self._firsts(text, max(at, size - self._longest + 1)):
            if text[first.start() :] in self._starts:
                return first.start()
        return size


@lru_cache(512)
def word_set(*words: str) -> PartialWordMatcher:
    """Return the compiled words; cached."""
    return PartialWordMatcher(*words)


class InputBuffer:
    """Text that has come and is not read yet; while `held` is a list, what is read is collected there."""

    __slots__ = ("at", "consumed", "ended", "held", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.consumed = 0  # characters read so far
        self.held: list[str] | None = None  # what was read since a marker, while it may still be plain text

    def push(self, text: str) -> None:
        """Add text at the end."""
        # What was read is dropped here, so that the buffer does not grow with the answer.
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def push_back(self, text: str) -> None:
        """Put text that was read back in front of the unread text."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def take(self, count: int) -> str:
        """Read so many characters, which must be there."""
        piece = self.text[self.at : self.at + count]
        self.at += len(piece)
        self.consumed += len(piece)
        if self.held is not None:
            self.held.append(piece)
        return piece

    @property
    def exhausted(self) -> bool:
        """Whether all text is read and no more will come."""
        return self.ended and self.at >= len(self.text)

    def peek(self) -> Parse[str]:
        """Return the next character without reading it; nothing at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def lookahead(self, count: int) -> Parse[str]:
        """Return the next characters without reading them; fewer at the end."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def accept(self, word: str) -> Parse[bool]:
        """Read the word if it comes next; otherwise read nothing and return False."""
        while True:
            if self.text.startswith(word, self.at):
                self.take(len(word))
                return True
            if self.ended or len(self.text) - self.at >= len(word) or not word.startswith(self.text[self.at :]):
                return False
            yield  # the text ends within the word

    def accept_any(self, *candidates: str) -> Parse[str]:
        """Read the word that comes next and return it; of two that start the same, the longer must stand first."""
        for candidate in candidates:
            if (yield from self.accept(candidate)):
                return candidate
        return ""

    def starts_with(self, *candidates: str) -> Parse[bool]:
        """Return whether one of these comes next; read nothing."""
        while not self.text.startswith(candidates, self.at):
            rest = self.text[self.at :]
            if self.ended or not any(candidate.startswith(rest) for candidate in candidates):
                return False
            yield
        return True

    def read_chars(self, chars: re.Pattern[str], limit: int = 4096) -> Parse[str]:
        """Read as many characters as the pattern, a repeated class, matches, up to the limit."""
        pieces: list[str] = []
        while True:
            found = chars.match(self.text, self.at)
            if found is not None and found.end() > self.at:
                pieces.append(self.take(min(found.end() - self.at, limit)))
                limit -= len(pieces[-1])
            if self.at < len(self.text) or self.ended or not limit:
                return "".join(pieces) if len(pieces) != 1 else pieces[0]
            yield

    def read_blanks(self) -> Parse[str]:
        """Read the blanks that come next."""
        return (yield from self.read_chars(_BLANKS, 1 << 62))

    def copy_until(self, stops: PartialWordMatcher, out: TextSink) -> Parse[str]:
        """Copy the text before the first of the words, which is returned unread; nothing at the end."""
        while True:
            found = stops.find(self.text, self.at)
            end = found.start() if found else len(self.text) if self.ended else stops.partial_at(self.text, self.at)
            if end > self.at:
                out(self.take(end - self.at))
            if found or self.ended:
                return found.group() if found else ""
            yield

    def copy_rest(self, out: TextSink) -> Parse[None]:
        """Copy all text that is left."""
        while not self.exhausted:
            if self.at < len(self.text):
                out(self.take(len(self.text) - self.at))
            else:
                yield

    def ends_with_only(self, skip: int, words: tuple[str, ...]) -> Parse[bool]:
        """Return whether only blanks and one of the words come after so many characters; read nothing."""
        while True:
            rest = self.text[self.at + skip : self.at + skip + _MAX_BLANKS].strip(" \t\r\n")
            if rest and rest not in words and (self.ended or not any(word.startswith(rest) for word in words)):
                return False
            if self.ended:
                return len(self.text) - self.at - skip <= _MAX_BLANKS
            if len(self.text) - self.at - skip > _MAX_BLANKS:
                return False
            yield

    def is_followed_by(self, skip: int, by: tuple[str, ...]) -> Parse[bool]:
        """Return whether one of the words or the end comes after so many characters and any blanks; read nothing."""
        while True:
            found = _BLANKS.match(self.text, self.at + skip)
            at = found.end() if found else len(self.text)
            # Beyond the limit a closing mark counts as one, rather than holding back more and more text.
            if self.text.startswith(by, at) or at - self.at - skip > _MAX_BLANKS:
                return True
            rest = self.text[at:]
            if rest and not any(word.startswith(rest) for word in by):
                return False
            if self.ended:
                return True
            yield
