"""Match the URLs and commands of calls against patterns that the configuration approves beforehand.

Nothing here guesses. A URL or a command that is not of the plainest form matches no pattern, and then a person decides.
A URL pattern covers the address of the first request, not the one that its server redirects to.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from types import NoneType
from typing import Any

from msgspec import Struct

_PORTS = {"http": 80, "https": 443}
# Labels of 1 to 63 letters, digits and inner hyphens, with dots between them: `docs.example.org`.
_HOST = r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# No userinfo, no brackets, no blanks, no backslashes, no `?` or `#` right behind the host: readers of URLs disagree there.
_URL = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?"
    r"(?:(?P<path>/[!$-;=@-Z_a-z~]*)(?:\?[!$-;=?-Z_a-z~]*)?(?:#[!$-;=?-Z_a-z~]*)?)?",
    re.IGNORECASE | re.ASCII,
)
# As a URL, but the scheme may be missing, `*.` may stand before the host, and `*` behind the last slash of the path.
_PATTERN = re.compile(
    rf"(?:(?P<scheme>https?)://)?(?P<below>\*\.)?(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?"
    r"(?P<path>/[!$-)+-;=@-Z_a-z~]*)?(?:(?<=/)\*)?",
    re.IGNORECASE | re.ASCII,
)
# Paths that a server may resolve to another folder than the pattern's: `/docs/../admin`, `//`, and dots, slashes,
# backslashes, percent signs and NULs that are hidden as %2e, %2f, %5c, %25 and %00.
_AMBIGUOUS_PATH = re.compile(r"/\.{1,2}(?:/|$)|//|%2[ef]|%5c|%25|%00", re.IGNORECASE)
_LOOKS_LIKE_URL = re.compile(r":[/\\]|^\s*[/\\]{2}")  # `ftp://host`, and `//host` without a scheme

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=@+,-]+")  # nothing that a shell would read as more than a word
# Programs that run the command in their arguments: a pattern with one of them would approve everything.
_RUNS_ANYTHING = re.compile(
    r"(?:.*/)?(?:(?:ba|da|z|fi|k|c|tc)?sh|cmd|powershell|pwsh|env|sudo|doas|su|xargs|nohup|nice|time|timeout|ssh|eval|exec)"
    r"(?:\.exe)?",
    re.IGNORECASE,
)
_COMMAND_NAMES = ("command", "argv", "cmd")


class AutoApprovedUrlPattern(Struct, frozen=True):
    """A host, or all hosts `below` it, and the start of a path: `https://docs.example.org/guide`, `*.example.org`."""

    scheme: str
    host: str
    below: bool
    port: int
    path: str

    def matches(self, url: str) -> bool:
        """Whether the URL matches, in the only way in which any parser can read it."""
        found = _URL.fullmatch(url)
        if found is None or _AMBIGUOUS_PATH.search(found["path"] or ""):
            return False
        scheme, host, path = found["scheme"].lower(), found["host"].lower(), found["path"] or "/"
        if (scheme, int(found["port"] or _PORTS[scheme])) != (self.scheme, self.port):
            return False
        if self.below:
            # A wildcard was not written with look-alikes (xn--) in mind, nor for the bare domain.
            is_host = host.endswith("." + self.host) and "xn--" not in host.removesuffix(self.host)
        else:
            is_host = host == self.host
        folder = self.path if self.path.endswith("/") else self.path + "/"
        return is_host and (path == self.path or path.startswith(folder))


def url_pattern(text: str) -> AutoApprovedUrlPattern:
    """Parse a pattern; ValueError names the mistake. Without a scheme it means https."""
    found = _PATTERN.fullmatch(text)
    if found is None or _AMBIGUOUS_PATH.search(found["path"] or ""):
        raise ValueError(f"{text!r} is no URL pattern; write https://host/path or *.host")
    scheme = (found["scheme"] or "https").lower()
    if found["below"] and "." not in found["host"]:
        raise ValueError(f"{text!r} would mean a whole top-level domain")
    port = int(found["port"] or _PORTS[scheme])
    return AutoApprovedUrlPattern(scheme, found["host"].lower(), bool(found["below"]), port, found["path"] or "/")


def urls_in(arguments: Mapping[str, Any]) -> list[str] | None:
    """List every URL among the arguments; None if there is no `url` argument, or one that is not text.

    Text elsewhere that looks like a URL counts, too: a proxy or a callback is as much a destination as `url`.
    """
    named = [arguments[name] for name in ("url", "urls") if name in arguments]
    flat = [one for value in named for one in (value if isinstance(value, list) else [value])]
    if not flat or not all(isinstance(one, str) for one in flat):
        return None
    rest = {name: value for name, value in arguments.items() if name not in ("url", "urls")}
    return [*flat, *(text for text in _texts(rest) if _LOOKS_LIKE_URL.search(text))]


def urls_match(patterns: Sequence[AutoApprovedUrlPattern], arguments: Mapping[str, Any]) -> bool:
    """Whether the call has URLs and each of them matches a pattern."""
    urls = urls_in(arguments)
    return bool(urls) and all(any(pattern.matches(url) for pattern in patterns) for url in urls or ())


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield key
                yield from _texts(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


def command_pattern(words: Sequence[str]) -> tuple[str, ...]:
    """Check a pattern, the first words of a command; ValueError if it would let everything run."""
    if not words or not all(_PLAIN_WORD.fullmatch(word) for word in words):
        raise ValueError(f"{list(words)!r} is no command pattern; write its words as a list, without shell syntax")
    if _RUNS_ANYTHING.fullmatch(words[0]):
        raise ValueError(f"{words[0]!r} runs whatever it is given, so it cannot be approved beforehand")
    if "=" in words[0]:
        raise ValueError(f"{words[0]!r} sets a variable; a pattern begins with the program")
    return tuple(words)


def commands_match(patterns: Sequence[tuple[str, ...]], arguments: Mapping[str, Any]) -> bool:
    """Whether the call has a command, a list of words that begins with those of a pattern, and nothing else."""
    named = [name for name in _COMMAND_NAMES if name in arguments]
    if len(named) != 1:
        return False
    # Any further argument (a folder, variables, `shell`) could change what the words do: only numbers may stand beside them.
    words, others = arguments[named[0]], [value for name, value in arguments.items() if name != named[0]]
    if any(isinstance(one, bool) or not isinstance(one, (int, Decimal, NoneType)) for one in others):
        return False
    # A single string may be read by a shell, so that it never matches. Words must be plain, in case the tool joins them.
    if not isinstance(words, list) or not all(isinstance(word, str) and _PLAIN_WORD.fullmatch(word) for word in words):
        return False
    return any(tuple(words[: len(pattern)]) == pattern for pattern in patterns)
