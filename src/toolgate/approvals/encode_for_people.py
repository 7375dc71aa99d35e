"""Encode approvals and grants as JSON for the people who decide: nothing hidden, disguised or left out.

Characters that change what a reader sees (that turn the direction, take no space, move a cursor or pass for another
letter) are written as JSON escapes, so that the arguments stay JSON with the same meaning. A user interface must still
treat the result as text: markup is not escaped here.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from toolgate.approvals.digest import AmbiguousArguments, canonical_arguments
from toolgate.approvals.record import Approval, StandingApproval

# Characters of a title or question that are shown; arguments are always shown whole: the harm may be in their last line.
MAX_TEXT = 4000

_LATIN = re.compile("[A-Za-z]")
# A word, or an escape, whose letter belongs to no word: the `n` of `\n` is not a Latin letter of what follows.
_WORD = re.compile(r"\\.|\w+", re.DOTALL)
# Unicode calls them printable, yet they show nothing or change the character before them.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code)
    for start, end in ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
    for code in range(start, end + 1)
}
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Scripts with letters that look like Latin ones: a host name with one Cyrillic letter looks like the right one.
_LOOKALIKE_SCRIPTS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "GEORGIAN")


def escape_deceptive(text: str) -> str:
    """Escape every character that could deceive a reader; printable ASCII stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    unmixed = text if text.isascii() else _WORD.sub(lambda word: _escape_lookalikes(word[0]), text)
    return unmixed.translate(_DECEPTIVE)


def one_line(text: str | None) -> str | None:
    """Escape a title or question so that it takes one line, and cut it with a note where it is too long."""
    if text is None:
        return None
    # Backslashes are doubled, so that an escape which the author wrote differs from one that is made here.
    line = escape_deceptive(text[:MAX_TEXT].replace("\\", "\\\\"))
    more = len(text) - MAX_TEXT
    return f"{line} … ({more} more characters)" if more > 0 else line


def ascii_name(text: str | None) -> str | None:
    """Escape all but ASCII in a name, so that none can look like another."""
    return None if text is None else "".join([char if " " <= char <= "~" else _escape(char) for char in text])


def shown_arguments(text: str) -> str:
    """Escape the arguments, whole and in canonical form; a text without one stays as it is."""
    try:
        return escape_deceptive(canonical_arguments(text))
    except AmbiguousArguments:
        return escape_deceptive(text)


def approval_json(approval: Approval) -> dict[str, Any]:
    """Encode an approval for the person who decides."""
    return {
        "object": "approval",
        "id": approval.id,
        "state": approval.state,
        "tool": ascii_name(approval.tool),
        "source": ascii_name(approval.source),
        "origin": ascii_name(approval.origin),
        "arguments": shown_arguments(approval.arguments),
        "digest": approval.digest,
        "why": approval.why,
        "title": one_line(approval.title),
        "question": one_line(approval.question),
        "message": one_line(approval.message),
        "tainted": approval.tainted,
        "caller": ascii_name(approval.caller),
        "session": ascii_name(approval.session),
        "run": ascii_name(approval.run),
        "call_id": ascii_name(approval.call),
        "definition": approval.spec,
        "policy": approval.policy,
        "created_at": int(approval.created),
        "expires_at": int(approval.expires),
        "answered_by": ascii_name(approval.answered_by),
        "answered_at": None if approval.answered is None else int(approval.answered),
        "level": approval.level,
        "reason": one_line(approval.reason),
        "edited_arguments": None if approval.edited is None else shown_arguments(approval.edited),
        "edited_digest": approval.edited_digest,
    }


def grant_json(grant: StandingApproval) -> dict[str, Any]:
    """Encode a grant for its list."""
    return {
        "object": "approval.grant",
        "id": grant.id,
        "tool": ascii_name(grant.tool),
        "source": ascii_name(grant.source),
        "caller": ascii_name(grant.caller),
        "level": grant.level,
        "place": ascii_name(grant.place),
        "definition": grant.spec,
        "granted_by": ascii_name(grant.granted_by),
        "created_at": int(grant.created),
    }


def _escape_lookalikes(word: str) -> str:
    """Escape the letters of scripts that resemble Latin in a word that has Latin letters, too."""
    if word.isascii() or word[0] == "\\" or not _LATIN.search(word):
        return word
    return word.translate(_LOOKALIKES)


def _is_deceptive(char: str) -> bool:
    """Whether a character is invisible, or a plain letter or digit in another form: full-width, bold, circled."""
    plain = unicodedata.normalize("NFKC", char)
    return not char.isprintable() or char in _BLANK or (plain.isascii() and plain.isalnum())


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")  # JSON writes a character beyond U+FFFF as two units
    return "".join([f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2)])


class _Escapes(dict[int, str]):
    """A table for `str.translate`, filled as characters occur: a long text consists of few different ones."""

    _MAX_SIZE = 20_000

    def __init__(self, is_escaped: Callable[[str], bool]) -> None:
        self._is_escaped = is_escaped

    def __missing__(self, code: int) -> str:
        if len(self) >= self._MAX_SIZE:
            self.clear()
        char = chr(code)
        self[code] = text = _escape(char) if not " " <= char <= "~" and self._is_escaped(char) else char
        return text


_DECEPTIVE = _Escapes(_is_deceptive)
_LOOKALIKES = _Escapes(lambda char: unicodedata.name(char, "").startswith(_LOOKALIKE_SCRIPTS))
