"""Join surrogate pairs that arrive in two fragments, and replace lone surrogates, which UTF-8 cannot encode, by U+FFFD.

`SurrogateJoiner` is for plain text, `JsonSurrogateRepair` for JSON text, in which a surrogate may also be an escape.
"""

import re
from typing import Any

import msgspec

_SLICE = 64 * 1024
# U+1F600 is `\ud83d\ude00` in JSON: a high surrogate (d800–dbff) and a low one (dc00–dfff).
_HIGH, _LOW, _HEX = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", r"[0-9a-fA-F]"
# An escape of which the text has only the beginning: `\`, `\u`, `\ud8`.
_BEGUN = rf"\\(?:u{_HEX}{{0,3}})?\Z"
# In order: what may be the beginning of a pair and is kept; a pair of escapes; a lone escape; any other escape, so that
# `\\ud800` is read as a backslash and text; a pair of characters; a lone character.
_ESCAPE = re.compile(
    rf"(?P<begun>{_BEGUN}|{_HIGH}(?:{_BEGUN}|\Z)|[\ud800-\udbff]\Z)"
    rf"|{_HIGH}{_LOW}|(?P<escape>{_HIGH}|{_LOW})|\\[^\ud800-\udfff]|[\ud800-\udbff][\udc00-\udfff]|(?P<char>[\ud800-\udfff])",
    re.DOTALL,
)
_LONE_AT_END = re.compile(rf"\A(?:{_HIGH}|[\ud800-\udbff])")
_LONE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # quick and too broad: it finds pairs as well
_SURROGATE = re.compile("[\ud800-\udfff]")


class SurrogateJoiner:
    """Joins surrogate pairs across the fragments of a text; a surrogate that stays alone becomes U+FFFD."""

    __slots__ = ("high",)

    def __init__(self) -> None:
        self.high = ""  # a high surrogate that waits for its low one; without one, ASCII text need not be fed

    def feed(self, text: str) -> str:
        """Return the text, preceded by a kept high surrogate; a high surrogate at its end is kept for the next fragment."""
        if not self.high and (text.isascii() or _SURROGATE.search(text) is None):
            return text
        text, self.high = self.high + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self.high = text[:-1], text[-1]
        # To Python the halves of a pair are two characters. UTF-16 joins them, and one that is alone is replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def end(self) -> str:
        """Return U+FFFD for a high surrogate that was kept and that nothing completed."""
        high, self.high = self.high, ""
        return "\ufffd" if high else ""


class JsonSurrogateRepair:
    """Replaces lone surrogates in JSON text that arrives in fragments; keeps what may be the beginning of a pair."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = ""

    def feed(self, fragment: str) -> str:
        """Return as much of the text so far as is certain."""
        if not self.kept and "\\" not in fragment and (fragment.isascii() or _LONE.search(fragment) is None):
            return fragment
        if len(fragment) > _SLICE:  # a single substitution does not release the interpreter to other threads
            return "".join([self.feed(fragment[at : at + _SLICE]) for at in range(0, len(fragment), _SLICE)])
        text, self.kept = self.kept + fragment, ""
        return _ESCAPE.sub(self._replace, text)

    def end(self) -> str:
        """Return what was kept, now that nothing follows it."""
        text, self.kept = self.kept, ""
        return _LONE_AT_END.sub(lambda found: "\ufffd" if len(found[0]) == 1 else r"\ufffd", text)

    def _replace(self, found: re.Match[str]) -> str:
        match found.lastgroup:
            case "begun":
                self.kept = found[0]
                return ""
            case "escape":
                return r"\ufffd"
            case "char":
                return "\ufffd"
        # The two surrogates of a pair may have arrived in different fragments.
        return found[0] if found[0][0] == "\\" else found[0].encode("utf-16", "surrogatepass").decode("utf-16")


def repair_json_surrogates(text: str) -> str:
    """Replace each lone surrogate in JSON text, escaped or not, by U+FFFD."""
    if (text.isascii() and "\\" not in text) or _LONE.search(text) is None:
        return text
    repair = JsonSurrogateRepair()
    return repair.feed(text) + repair.end()


def encode_repaired(value: Any) -> bytes:
    """Encode JSON that is kept; a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(repair_surrogates(value))


def repair_surrogates(value: Any) -> Any:
    """Replace lone surrogates in all strings of a decoded JSON value, or of a struct, which becomes such a value."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {repair_surrogates(key): repair_surrogates(inner) for key, inner in value.items()}
        case list() | tuple():
            return [repair_surrogates(inner) for inner in value]
        case msgspec.Struct():
            return repair_surrogates(msgspec.to_builtins(value))
        case _:
            return value
