"""A question as a person may be shown it: nothing hidden, nothing disguised, nothing left out of the arguments.

Characters that change what a reader sees (that turn the direction, take no room, move a cursor or pass for another
letter) are written as the escapes that JSON has for them, so that the arguments stay JSON with the same meaning.
Whoever shows the result must still treat it as text: markup is not our business.
"""

import re
import unicodedata
from typing import Any

from toolgate.tools.approvals.binding import Ambiguous, canonical
from toolgate.tools.approvals.record import Approval, Grant

LONGEST_REMARK = 4000
"""Characters of a title or question that are shown; arguments are always shown whole."""

_BEYOND_ASCII = re.compile(r"[^ -~]+")
_WORD = re.compile(r"\\.|\w+", re.DOTALL)
"""A word, or an escape, whose letter belongs to no word."""
# Printable by Unicode's book, yet they show nothing or change what stands before them.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code)
    for start, end in ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
    for code in range(start, end + 1)
}
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MIMICS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "GEORGIAN")


def visible(text: str) -> str:
    """The text with every character that could deceive written as an escape; ASCII that is plain stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    mended = text if text.isascii() else _WORD.sub(lambda word: _unmixed(word[0]), text)
    return _BEYOND_ASCII.sub(lambda run: "".join([_character(char) for char in run[0]]), mended)


def remark(text: str | None) -> str | None:
    """A title or question on one line, cut where it is too long, with a word about the cut."""
    if text is None:
        return None
    shown = visible(text[:LONGEST_REMARK].replace("\\", "\\\\"))
    more = len(text) - LONGEST_REMARK
    return f"{shown} … ({more} more characters)" if more > 0 else shown


def name(text: str | None) -> str | None:
    """A name with nothing but ASCII in it, so that none can look like another."""
    return None if text is None else "".join([char if " " <= char <= "~" else _escape(char) for char in text])


def arguments(text: str) -> str:
    """The arguments whole, in canonical form; text without one is shown as it is."""
    try:
        return visible(canonical(text))
    except Ambiguous:
        return visible(text)


def shown(approval: Approval) -> dict[str, Any]:
    """The approval as JSON for whoever decides."""
    return {
        "object": "approval",
        "id": approval.id,
        "state": approval.state,
        "tool": name(approval.tool),
        "source": name(approval.source),
        "origin": name(approval.origin),
        "arguments": arguments(approval.arguments),
        "digest": approval.digest,
        "why": approval.why,
        "title": remark(approval.title),
        "question": remark(approval.question),
        "message": remark(approval.message),
        "tainted": approval.tainted,
        "caller": name(approval.caller),
        "session": name(approval.session),
        "run": name(approval.run),
        "call_id": name(approval.call),
        "definition": approval.spec,
        "policy": approval.policy,
        "created_at": int(approval.created),
        "expires_at": int(approval.expires),
        **_answer(approval),
    }


def _answer(approval: Approval) -> dict[str, Any]:
    return {
        "answered_by": name(approval.answered_by),
        "answered_at": None if approval.answered is None else int(approval.answered),
        "level": approval.level,
        "reason": remark(approval.reason),
        "edited_arguments": None if approval.edited is None else arguments(approval.edited),
        "edited_digest": approval.edited_digest,
    }


def shown_grant(grant: Grant) -> dict[str, Any]:
    """A grant as JSON for whoever may forget it."""
    return {
        "object": "approval.grant",
        "id": grant.id,
        "tool": name(grant.tool),
        "source": name(grant.source),
        "caller": name(grant.caller),
        "level": grant.level,
        "place": name(grant.place),
        "definition": grant.spec,
        "granted_by": name(grant.granted_by),
        "created_at": int(grant.created),
    }


def _character(char: str) -> str:
    return char if char.isprintable() and char not in _BLANK and not _is_disguised(char) else _escape(char)


def _is_disguised(char: str) -> bool:
    """Whether it is a plain letter or digit in another dress: full-width, bold, circled."""
    plain = unicodedata.normalize("NFKC", char)
    return plain.isascii() and plain.isalnum()


def _unmixed(word: str) -> str:
    """The word, with letters of scripts that resemble Latin escaped if it has Latin letters, too."""
    if word.isascii() or word[0] == "\\" or not any(char.isascii() and char.isalpha() for char in word):
        return word
    return "".join([_escape(char) if _is_mimic(char) else char for char in word])


def _is_mimic(char: str) -> bool:
    return not char.isascii() and unicodedata.name(char, "").startswith(_MIMICS)


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2)])
