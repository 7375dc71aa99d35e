"""Wrap styled words into lines of a terminal, word by word as they are written."""

import re
from collections.abc import Callable
from typing import NamedTuple

from toolgate.cli.chat.style import TerminalStyle
from toolgate.cli.chat.terminal_text import columns

_WORDS = re.compile(r"\s+|\S+")


class StyledSpan(NamedTuple):
    """A piece of text and its styles."""

    text: str
    styles: tuple[str, ...]


class LineWriter:
    """Wraps words into lines; a word waits for its end, because it may not fit."""

    def __init__(self, style: TerminalStyle, width: Callable[[], int]) -> None:
        self._style = style
        self._width = width
        self._out: list[str] = []
        # The word that waits for its end, in pieces if its styles change: **bold**ly.
        self._word: list[StyledSpan] = []
        self._word_columns = 0
        # Spaces before that word; they are left out if it begins a line.
        self._spaces = 0
        self._column = 0
        self._hanging = ""
        self._wrap = True
        # Blank lines that are written when another line begins.
        self._blanks = 0
        self._begun = False

    def take(self) -> str:
        """Return what was written since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def start(self, prefix: str = "", hanging: str = "", wrap: bool = True) -> None:
        """Begin a line; continued lines begin with the hanging prefix."""
        if self._begun:
            self._out.append("\n" * (1 + min(self._blanks, 1)))
        self._begun, self._blanks = True, 0
        self._hanging, self._wrap = hanging, wrap
        self._out.append(self._style.paint(prefix, "dim"))
        self._column, self._spaces = columns(prefix), 0

    def blank(self) -> None:
        """Leave a blank line before the next one; several become one, and none ends the message."""
        self._blanks += 1

    def line(self, spans: list[StyledSpan], wrap: bool = True) -> None:
        """Write a whole line."""
        self.start(wrap=wrap)
        for span in spans:
            self.write(span)
        self.end()

    def write(self, span: StyledSpan) -> None:
        """Continue the line."""
        if not self._wrap:
            self._out.append(self._style.paint(span.text, *span.styles))
            return
        for found in _WORDS.finditer(span.text):
            if found[0].isspace():
                self.flush()
                self._spaces += len(found[0])
                continue
            self._word.append(StyledSpan(found[0], span.styles))
            self._word_columns += columns(found[0])
            # A word that fits on no line need not wait for its end.
            if self._word_columns > self._width() - columns(self._hanging):
                self.flush()

    def end(self) -> None:
        """End the line; the line feed is written when another line begins."""
        self.flush()
        self._spaces = 0

    def flush(self) -> None:
        """Write the word that waits, on this line or the next; the terminal breaks one that fits on no line."""
        if not self._word:
            return
        width = self._width()
        fits = self._column + self._spaces + self._word_columns <= width
        if not fits and self._spaces and self._column > columns(self._hanging):
            self._out.append("\n" + self._style.paint(self._hanging, "dim"))
            self._column, self._spaces = columns(self._hanging), 0
        self._out.append(" " * self._spaces)
        self._out.extend([self._style.paint(span.text, *span.styles) for span in self._word])
        self._column += self._spaces + self._word_columns
        # The terminal has broken the word at its right edge.
        if self._column > width:
            self._column %= width
        self._word.clear()
        self._word_columns = self._spaces = 0
