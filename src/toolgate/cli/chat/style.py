"""How text looks on the terminal at hand: colours, symbols and widths, or none of them.

`NO_COLOR` and dumb terminals are respected; a terminal that is not UTF-8 gets plain ASCII symbols.
"""

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple, TextIO

RESET = "\x1b[0m"
MIN_WIDTH = 10
DEFAULT_WIDTH = 80

# Parameters of the escape sequence CSI … m: "bold" is written as \x1b[1m. Only the basic colours, which every terminal
# has, and which follow its light or dark theme.
_CODES = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "underline": "4",
    "strike": "9",
    "code": "36",
    "keyword": "35",
    "string": "32",
    "number": "33",
    "comment": "2;3",
    "heading": "1;35",
    "prompt": "1;36",
    "tool": "1;33",
    "good": "32",
    "bad": "31",
    "warning": "33",
}
UNICODE_SYMBOLS = {
    "bullet": "•",
    "quote": "│",
    "rule": "─",
    "call": "●",
    "result": "↳",
    "open": "☐",
    "done": "☑",
    "ask": "?",
}
ASCII_SYMBOLS = {
    "bullet": "*",
    "quote": "|",
    "rule": "-",
    "call": "*",
    "result": "->",
    "open": "[ ]",
    "done": "[x]",
    "ask": "?",
}


class TerminalStyle(NamedTuple):
    """What the terminal can do: `colored` allows colours, `movable` allows lines to be rewritten."""

    colored: bool
    movable: bool
    symbols: Mapping[str, str]

    def paint(self, text: str, *names: str) -> str:
        """Return the text in these styles."""
        if not self.colored or not names or not text:
            return text
        return f"\x1b[{';'.join([_CODES[name] for name in names])}m{text}{RESET}"


PLAIN = TerminalStyle(False, False, UNICODE_SYMBOLS)


def style_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> TerminalStyle:
    """Find out what the terminal behind a stream can do."""
    # Without TERM nothing is known of the terminal, as inside some editors.
    movable = stream.isatty() and environ.get("TERM", "dumb") not in ("dumb", "")
    unicode = "utf" in (stream.encoding or "").lower()
    return TerminalStyle(
        movable and not environ.get("NO_COLOR"), movable, UNICODE_SYMBOLS if unicode else ASCII_SYMBOLS
    )


def terminal_width() -> int:
    """Return the present width of the terminal."""
    return max(MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)
