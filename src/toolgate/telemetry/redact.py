"""Keeping secrets out of whatever a person or a collector may read.

What is known to be secret is found by its value, what looks like a secret by its shape. At most its last four
characters stay, enough to tell which one it was.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

_KEPT = 4
_SHORTEST_KNOWN = 6
_LONG_ENOUGH = 16  # to show its end without giving it away

_SLICE = 32 * 1024
"""Characters that one search looks through: the interpreter does nothing else meanwhile."""

_OVERLAP = 2048
"""Characters that two slices have in common: more than any shape needs to be known by."""

_MARGIN = 128
"""Characters behind what was found that may show it to be something longer."""

_NAMES = (
    r"(?:x-)?(?:goog-)?api[-_ ]?key|access[-_]?key|client[-_]?secret|secret|passw(?:or)?d|pwd|authorization|credential"
)
# Text comes from strangers: nothing may be tried again and again, so whatever repeats is possessive or short.
_SHAPES: tuple[re.Pattern[str], ...] = (
    re.compile(r"(?i)\b((?:bearer|basic)\s{1,64}+)([^\s\"'\\,;]{4,}+)"),
    re.compile(
        rf"(?i)((?=[xacspt]|\bk)(?:{_NAMES}|token|\bkey)\\?[\"']?\s{{0,64}}+[=:]\s{{0,64}}+\\?[\"']?"
        r"(?:(?:bearer|basic)\s{1,64}+)?)([^\s\"'\\,;&}{)(]{3,}+)"
    ),
    re.compile(r"(://[^\s/:@\"']{0,256}+:)([^\s/@\"']{1,512}+)(?=@)"),
    re.compile(
        r"\b((?:sk|rk|pk|tg|gsk|xai|csk|fw|hf|r8|pplx|nvapi|glpat|gh[opsur]|github_pat|xox[abprs])[-_])"
        r"([A-Za-z0-9_-]{8,}+)"
    ),
    re.compile(r"\b(AIza|AKIA)([A-Za-z0-9_-]{12,}+)"),
)
# A JSON Web Token may begin anywhere within a stretch of its letters, so a stretch is looked at as a whole and once.
_STRETCH = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]{11,}+)(\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]*+)?)")
_JWT = re.compile(r"\beyJ(?=[A-Za-z0-9_-]{8})")
# Text without any of these, in small letters, has no secret of a known shape: most text is let through by this alone.
_MARKS = (
    *(
        "key",
        "token",
        "secret",
        "passw",
        "pwd",
        "bearer",
        "basic",
        "authoriz",
        "credential",
        "://",
        "eyj",
        "aiza",
        "akia",
    ),
    *("sk-", "sk_", "rk-", "rk_", "pk-", "pk_", "tg-", "tg_", "xai-", "fw_", "hf_", "r8_", "pplx-", "nvapi-", "glpat-"),
    *("gho_", "ghp_", "ghs_", "ghu_", "ghr_", "_pat_", "xox"),
)


def hint(secret: str) -> str:
    """What may be shown of a secret."""
    return f"…{secret[-_KEPT:]}" if len(secret) >= _LONG_ENOUGH else "…"


class Redactor:
    """Rewrites text so that no secret is left in it; `known` are those of the configuration."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({secret for secret in known if len(secret) >= _SHORTEST_KNOWN}, key=len, reverse=True)

    def suspects(self, text: str) -> bool:
        """Whether the text may hold a secret; a quick look that errs on the safe side."""
        small = text.lower()
        for mark in _MARKS:
            if mark in small:
                return True
        return any(secret in text for secret in self._known)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if not self.suspects(text):
            return text
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, hint(secret))
        for shape in _SHAPES:
            text = _replaced(shape, _shortened, text)
        return _replaced(_STRETCH, _without_token, text) if "eyJ" in text else text


def _shortened(found: re.Match[str]) -> str:
    secret = found[2]
    return found[1] + (secret if secret.startswith("…") else hint(secret))


def _without_token(found: re.Match[str]) -> str:
    token = _JWT.search(found[1])
    return found[0] if token is None else found[1][: token.end()] + hint(found[1][token.end() :] + found[2])


def _replaced(shape: re.Pattern[str], replacement: Callable[[re.Match[str]], str], text: str) -> str:
    """The text with whatever has this shape replaced; each search is short, however long the text."""
    if len(text) <= _SLICE:
        return shape.sub(replacement, text)
    pieces: list[str] = []
    kept = start = 0
    size = _SLICE
    while start < len(text):
        end = min(start + size, len(text))
        going_on = max(start, end - _OVERLAP)
        for found in shape.finditer(text, start, end):
            if found.end() > end - _MARGIN and end < len(text):  # it may be longer: look again from its beginning
                going_on, size = found.start(), size * 2 if found.start() == start else _SLICE
                break
            pieces += (text[kept : found.start()], replacement(found))
            kept = found.end()
            going_on = max(going_on, kept)
        else:
            size = _SLICE
        start = going_on if end < len(text) else len(text)
    return "".join([*pieces, text[kept:]])


def outline(arguments: str) -> str:
    """Arguments of a call as their shape alone: names stay, of every value only its kind and size."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return f"text of {len(arguments)}"
    return msgspec.json.encode(_outline(value, 0)).decode()[:1024]


def _outline(value: Any, depth: int) -> Any:
    match value:
        case dict() if depth < 4:
            return {str(name)[:64]: _outline(inner, depth + 1) for name, inner in list(value.items())[:32]}
        case list():
            return f"list of {len(value)}"
        case str():
            return f"text of {len(value)}"
        case bool() | None:
            return "flag" if value is not None else "null"
        case int() | float():
            return "number"
        case _:
            return "object"
