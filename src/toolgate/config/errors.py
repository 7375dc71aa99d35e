"""Collect the mistakes of a configuration by the path of their settings, and report them together."""

import difflib
import re
from collections.abc import Iterable

from msgspec import Struct


class ConfigProblem(Struct, frozen=True):
    """A mistake: the path of the setting and a sentence about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """The configuration cannot be used; the message lists every problem."""

    def __init__(self, problems: Iterable[ConfigProblem], source: str = "the configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{source} cannot be used:\n{listed}")


class ProblemCollector:
    """Collects problems while a configuration is read."""

    def __init__(self) -> None:
        self.found: list[ConfigProblem] = []
        # Paths of values that were replaced by placeholders.
        self._unread: list[str] = []

    def refuse(self, path: str, message: str, meant: str | None = None) -> None:
        """Add a value that cannot be read, or refers to nothing known; a placeholder replaces it.

        `meant` is the setting that a misspelt name probably stands for; it counts as unread, too.
        """
        self.found.append(ConfigProblem(path, message))
        self._unread += [path] if meant is None else [path, meant]

    def note(self, path: str, message: str, unless: str | None = None) -> None:
        """Add a mistake in a value that was read.

        A mistake that follows from another one is left out: that of a placeholder, and one whose `unless`, a regular
        expression, matches the path of an unread value.
        """
        placeholder = any(path == unread or path.startswith((f"{unread}.", f"{unread}[")) for unread in self._unread)
        if placeholder or (unless and any(re.fullmatch(unless, unread) for unread in self._unread)):
            return
        self.found.append(ConfigProblem(path, message))

    def is_unread(self, path: str) -> bool:
        """Return whether the value at this path is given, but was replaced by a placeholder."""
        return path in self._unread

    def raise_if_any(self, source: str) -> None:
        """Raise ConfigError if there are problems."""
        if self.found:
            raise ConfigError(self.found, source)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list all when none is near."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near}?"
    return f"known: {', '.join(names)}" if names else "none is known"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably stands for."""
    # Sorted, so that of two names that are equally near always the same one is suggested.
    lowered = {one.lower(): one for one in sorted(known)}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    # The beginning of a long name is too unlike it for difflib: `temp` for `temperature`.
    near += [one for one in lowered if len(name) > 2 and one.startswith(name.lower())]
    return lowered[near[0]] if near else None


def field_path(path: str, name: str) -> str:
    """Return the path of a field of the setting at `path`."""
    return f"{path}.{name}" if path else name
