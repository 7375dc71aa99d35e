"""Tool names that a model spells otherwise than they were declared: `Get_Weather` or `getWeather` for `get_weather`.

A name that is declared is never touched, and one that could mean two tools means none.
"""

from collections.abc import Collection

_LONGEST = 512
_MOST = 16  # warnings in one answer


def folded(name: str) -> str:
    """The name without case and separators."""
    return "".join([char for char in name.casefold() if char.isalnum()])


class Spellings:
    """Finds the one declared tool that an undeclared name means; what it looks in is made when it is first needed."""

    __slots__ = ("_declared", "_folded")

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._folded: dict[str, str | None] | None = None

    def meant(self, name: str) -> str | None:
        """The tool, if there is exactly one; an overlong name means none."""
        if self._folded is None:
            self._folded = {}
            for other in self._declared:
                key = folded(other)
                self._folded[key] = None if key in self._folded else other
        key = folded(name) if len(name) <= _LONGEST else ""
        return self._folded.get(key) if key else None


class CallNames:
    """Corrects the names in one answer's calls; `warnings` says which were corrected."""

    __slots__ = ("_declared", "_spellings", "warnings")

    def __init__(self, declared: Collection[str]) -> None:
        self.warnings: list[str] = []
        self._declared = declared
        self._spellings = Spellings(declared)

    def correct(self, name: str) -> str:
        """The name as it was declared, or as it is."""
        if not name or name in self._declared:
            return name
        other = self._spellings.meant(name)
        if other is None:
            return name
        if len(self.warnings) < _MOST and (warning := renamed(name, other)) not in self.warnings:
            self.warnings.append(warning)
        return other


def renamed(written: str, declared: str) -> str:
    """The warning that a call was taken for one of another name."""
    return f"the model called {written[:64]!r}, which was taken for {declared!r}"
