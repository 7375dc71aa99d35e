"""Replace secrets in texts that are logged or shown.

Secrets of the configuration are found by their values, other secrets by their shapes. At most the last four characters
stay, enough to recognise which secret it was.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

_KEPT = 4
_SHORTEST_KNOWN = 6  # a shorter secret is a part of ordinary words, which would all be replaced
_LONG_ENOUGH = 16  # to show the end of a secret without giving it away

# Characters of one search: the interpreter does nothing else meanwhile.
_SLICE = 32 * 1024

# Characters that two slices have in common: more than any shape needs to be recognised.
_OVERLAP = 2048

# Characters behind a match that may make it longer.
_MARGIN = 128

_NAMES = (
    r"(?:x-)?(?:goog-)?api[-_ ]?key|access[-_]?key|client[-_]?secret|secret|passw(?:or)?d|pwd|authorization|credential"
)
# The text is untrusted: no pattern may backtrack for long, so every repetition is possessive or short.
# The first group stays and the second is the secret: `Bearer …`, `api_key: …` also in JSON and escaped in a string,
# `://user:…@host`, and the keys of providers by their prefixes, such as `sk-…`, `ghp_…`, `AIza…`.
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
# A JSON Web Token may begin anywhere within a run of its characters, so a run is matched as a whole, and once.
_JWT_RUN = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]{11,}+)(\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]*+)?)")
_JWT_START = re.compile(r"\beyJ(?=[A-Za-z0-9_-]{8})")
# Lower-case text without any of these has no secret of a known shape: this test alone passes most texts.
_HINTS = (
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
    """Return what may be shown of a secret."""
    return f"…{secret[-_KEPT:]}" if len(secret) >= _LONG_ENOUGH else "…"


class Redactor:
    """Removes secrets from texts; `known` are the secrets of the configuration."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({secret for secret in known if len(secret) >= _SHORTEST_KNOWN}, key=len, reverse=True)

    def suspects(self, text: str) -> bool:
        """Return whether the text may contain a secret; a quick test that is never wrong in saying no."""
        lower = text.lower()
        for part in _HINTS:
            if part in lower:
                return True
        return any(secret in text for secret in self._known)

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if not self.suspects(text):
            return text
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, hint(secret))
        for shape in _SHAPES:
            text = _replace_all(shape, _hint_secret, text)
        # Every token begins so: it is the base64 of `{"`.
        return _replace_all(_JWT_RUN, _hint_token, text) if "eyJ" in text else text


def _hint_secret(match: re.Match[str]) -> str:
    secret = match[2]
    # One that an earlier shape has replaced already keeps its last characters.
    return match[1] + (secret if secret.startswith("…") else hint(secret))


def _hint_token(match: re.Match[str]) -> str:
    token = _JWT_START.search(match[1])
    return match[0] if token is None else match[1][: token.end()] + hint(match[1][token.end() :] + match[2])


def _replace_all(shape: re.Pattern[str], replacement: Callable[[re.Match[str]], str], text: str) -> str:
    """Replace all matches; each search is short, however long the text is."""
    if len(text) <= _SLICE:
        return shape.sub(replacement, text)
    pieces: list[str] = []
    kept = start = 0
    size = _SLICE
    while start < len(text):
        end = min(start + size, len(text))
        next_start = max(start, end - _OVERLAP)
        for match in shape.finditer(text, start, end):
            if match.end() > end - _MARGIN and end < len(text):  # it may be longer: search again from its start
                next_start, size = match.start(), size * 2 if match.start() == start else _SLICE
                break
            pieces += (text[kept : match.start()], replacement(match))
            kept = match.end()
            next_start = max(next_start, kept)
        else:
            size = _SLICE
        start = next_start if end < len(text) else len(text)
    return "".join([*pieces, text[kept:]])


# Characters of arguments that are decoded for the log.
_OUTLINED = 16_384


def outline(arguments: str) -> str:
    """Describe the arguments of a call without its values: names stay, of every value only type and size.

    A description is in `<>`, or it could be taken for the value.

    Long arguments are described by their length alone: decoding them would hold the event loop for a log line.
    """
    if len(arguments) > _OUTLINED:
        return f"<{len(arguments)} characters>"
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return f"<{len(arguments)} characters>"
    return msgspec.json.encode(_outline(value, 0)).decode()[:1024]


def _outline(value: Any, depth: int) -> Any:
    match value:
        case dict() if depth < 4:
            return {str(name)[:64]: _outline(inner, depth + 1) for name, inner in list(value.items())[:32]}
        case list():
            return f"<list of {len(value)}>"
        case str():
            return f"<{len(value)} characters>"
        case bool() | None:
            return "<flag>" if value is not None else "<null>"
        case int() | float():
            return "<number>"
        case _:
            return "<object>"
