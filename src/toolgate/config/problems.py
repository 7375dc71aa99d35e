"""What is wrong with a configuration, told all at once and by path."""

import difflib
from collections.abc import Iterable

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One thing to mend: the path of the setting and a sentence about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """The configuration cannot be used; every problem found is listed."""

    def __init__(self, problems: Iterable[Problem], source: str = "the configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{source} cannot be used:\n{listed}")


class Problems:
    """Collects problems while a configuration is read."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def note(self, path: str, message: str) -> None:
        """Remember one more."""
        self.found.append(Problem(path, message))

    def settle(self, source: str) -> None:
        """Raise if there was any."""
        if self.found:
            raise ConfigError(self.found, source)


def meant(word: str, known: Iterable[str]) -> str:
    """A question that offers the nearest known word, or a list of all when none is near."""
    words = sorted(known)
    lowered = {name.lower(): name for name in words}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    near += [name for name in lowered if len(word) > 2 and name.startswith(word.lower())]
    if near:
        return f"did you mean {lowered[near[0]]}?"
    return f"known: {', '.join(words)}" if words else "none is known"


def within(path: str, name: str) -> str:
    """The path of a field of what is at `path`."""
    return f"{path}.{name}" if path else name
