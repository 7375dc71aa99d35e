"""Make untrusted text safe for a terminal, and measure how many columns it takes.

Nothing is dropped: a character that would move the cursor, change the terminal or hide text is shown as a visible one.
"""

import unicodedata

# Parts of emoji and of Persian words: they are shown as they are.
_JOINERS = "\u200c\u200d"

# Unicode has a picture of each control character, in the order of their codes: U+241B (␛) for escape.
_PICTURES = 0x2400
_DELETE = 0x7F


def visible(text: str) -> str:
    """Replace each control, direction and invisible character by a visible one; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in "\n\t" else _visible(char) for char in text])


def without_controls(text: str) -> str:
    """Replace only control characters, for output that a program reads: text in all scripts stays as it is."""
    if text.isprintable():
        return text
    # Cc is control characters, Cs lone surrogates, which no encoding can write.
    return "".join(
        [_visible(char) if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cs") else char for char in text]
    )


def _visible(char: str) -> str:
    code = ord(char)
    match unicodedata.category(char):
        case "Zs" | "Co":  # spaces of other widths, and signs of special fonts
            return char
        case "Cf" if char in _JOINERS:
            return char
        case "Cn" if 0x1F000 <= code < 0x20000:  # an emoji that is newer than this Python
            return char
        case "Cc" if code < 0x20:
            return chr(_PICTURES + code)
        case "Cc" if code == _DELETE:
            return "\u2421"
        case _:
            return f"<U+{code:04X}>"


class TerminalTextFilter:
    """Makes streamed text safe, piece by piece; a line end may come in two pieces."""

    def __init__(self, terminal: bool = True) -> None:
        self._filter = visible if terminal else without_controls
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what can be shown of the text so far."""
        text = self._held + text
        # A lone carriage return would let the text overwrite the line; before a line feed it is a line end.
        self._held = "\r" if text.endswith("\r") else ""
        return self._filter(text.removesuffix("\r").replace("\r\n", "\n") if "\r" in text else text)

    def close(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return self._filter(held)


def columns(text: str) -> int:
    """Count the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum([_columns(char) for char in text])


def _columns(char: str) -> int:
    # Accents, enclosing marks and format characters take the column of the character before them.
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Cut a line to this many columns; a cut one ends with an ellipsis."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _columns(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Break a line between words into lines of this many columns; a longer word is broken anywhere."""
    lines, line, used = [], "", 0
    for word in text.split(" "):
        gap = " " if line else ""
        if used + len(gap) + columns(word) <= width:
            line, used = line + gap + word, used + len(gap) + columns(word)
            continue
        if line:
            lines.append(line)
        line, used = "", 0
        for char in word:
            if used + _columns(char) > width:
                lines.append(line)
                line, used = "", 0
            line, used = line + char, used + _columns(char)
    return [*lines, line] if line or lines else []
