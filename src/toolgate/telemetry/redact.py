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

_NAMES = (
    r"(?:x-)?(?:goog-)?api[-_ ]?key|access[-_]?key|client[-_]?secret|secret|passw(?:or)?d|pwd|authorization|credential"
)
_NAMED = re.compile(
    rf"(?i)((?:{_NAMES}|token|\bkey)\\?[\"']?\s*[=:]\s*\\?[\"']?(?:bearer\s+|basic\s+)?)([^\s\"'\\,;&}}{{)(]{{3,}})"
)
# No pattern may try long stretches again and again: text comes from strangers.
_SHAPES: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)([^\s\"'\\,;]{4,})"), 2),
    (_NAMED, 2),
    (re.compile(r"(://[^\s/:@\"']{0,256}:)([^\s/@\"']{1,512})(?=@)"), 2),
    (
        re.compile(
            r"\b((?:sk|rk|pk|tg|gsk|xai|csk|fw|hf|r8|pplx|nvapi|glpat|gh[opsur]|github_pat|xox[abprs])[-_])"
            r"([A-Za-z0-9_-]{8,})"
        ),
        2,
    ),
    (re.compile(r"\b(AIza|AKIA)([A-Za-z0-9_-]{12,})"), 2),
    (re.compile(r"\b(eyJ)([A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?)"), 2),
)
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
        for shape, group in _SHAPES:
            text = shape.sub(_shorten(group), text)
        return text


def _shorten(group: int) -> Callable[[re.Match[str]], str]:
    def shortened(found: re.Match[str]) -> str:
        secret = found[group]
        return found[1] + (secret if secret.startswith("…") else hint(secret))

    return shortened


def outline(arguments: str) -> str:
    """Arguments of a call as their shape alone: names stay, of every value only its kind and size."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError):
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
