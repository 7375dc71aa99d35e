"""Find a model by the name that a client sends: exact names first, then alias patterns, the most specific first.

Knows names and patterns; it must not know models.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

# Longer names are compared with no pattern: the time for that grows with the length.
LONGEST_NAME = 256

Found = TypeVar("Found")


def is_pattern(name: str) -> bool:
    """Whether a configured alias stands for several names."""
    return "*" in name


class AliasPattern(Struct, frozen=True):
    """An alias such as `gpt-*`: each `*` stands for any characters, also for none."""

    text: str

    @property
    def specificity(self) -> int:
        """The number of characters that a name must share with the pattern."""
        return len(self.text) - self.text.count("*")

    def matches(self, name: str) -> bool:
        """Match in linear time: the name comes from a client, so no regular expression is built from the pattern."""
        first, *middle, last = self.text.split("*")
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        # The first place of each piece is enough: it leaves the most room for those that follow.
        at, end = len(first), len(name) - len(last)
        for piece in middle:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


class ModelNameTable(Generic[Found]):
    """A table from every name and alias of a model to a value."""

    def __init__(self, named: Iterable[tuple[str, Found]]) -> None:
        """Later entries replace earlier ones of the same name; of two equally specific patterns the earlier wins."""
        entries = tuple(named)
        self._exact: Mapping[str, Found] = {name: found for name, found in entries if not is_pattern(name)}
        patterns = [(AliasPattern(name), found) for name, found in entries if is_pattern(name)]
        self._patterns = sorted(patterns, key=lambda entry: -entry[0].specificity)

    def find(self, name: str) -> Found | None:
        """Look a name up; Ollama's clients may put `:latest` behind it."""
        found = self._exact.get(name) or self._exact.get(name.removesuffix(":latest"))
        if found is None and self._patterns and len(name) <= LONGEST_NAME:
            found = next((found for pattern, found in self._patterns if pattern.matches(name)), None)
        return found
