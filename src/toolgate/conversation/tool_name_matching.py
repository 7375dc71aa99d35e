"""Correct tool names that a model spells differently: `Get_Weather` or `getWeather` for `get_weather`.

Servers of gpt-oss leave parts of its own format in a name: `functions.get_weather`, `get_weather<|channel|>commentary`.
A declared name is never changed, and a name that could mean two tools matches none.
"""

from collections.abc import Collection, Iterable

_MAX_NAME = 512  # characters: a model in a loop writes names without end
_MAX_WARNINGS = 16  # in one answer
_NAMESPACE = "functions."
_SPECIAL_MARK = "<|"  # begins every special token of gpt-oss


def fold_name(name: str) -> str:
    """Return the name without case and separators."""
    return "".join([char for char in name.casefold() if char.isalnum()])


class ToolNameMatcher:
    """Finds the declared tool that an undeclared name means; its index is built when it is first needed."""

    __slots__ = ("_declared", "_folded")

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._folded: dict[str, str | None] | None = None

    def match(self, name: str) -> str | None:
        """Return the tool if exactly one matches; an overlong name matches none."""
        if self._folded is None:
            self._folded = {}
            for other in self._declared:
                key = fold_name(other)
                self._folded[key] = None if key in self._folded else other
        if len(name) > _MAX_NAME:
            return None
        bare = name.partition(_SPECIAL_MARK)[0].strip().removeprefix(_NAMESPACE)
        keys = [key for key in (fold_name(name), fold_name(bare)) if key]
        return next((self._folded[key] for key in keys if key in self._folded), None)

    def matches_any(self, names: Iterable[str]) -> bool:
        """Whether one of the names means a declared tool."""
        return any(self.match(name) is not None for name in names)


class CallNameCorrector:
    """Corrects the names in one answer's calls; `warnings` lists the corrections."""

    __slots__ = ("_declared", "_matcher", "warnings")

    def __init__(self, declared: Collection[str]) -> None:
        self.warnings: list[str] = []
        self._declared = declared
        self._matcher = ToolNameMatcher(declared)

    def correct(self, name: str) -> str:
        """Return the declared name that is meant, or the name unchanged."""
        if not name or name in self._declared:
            return name
        other = self._matcher.match(name)
        if other is None:
            return name
        if len(self.warnings) < _MAX_WARNINGS and (warning := correction_warning(name, other)) not in self.warnings:
            self.warnings.append(warning)
        return other


def correction_warning(written: str, declared: str) -> str:
    """Return the warning that a call was taken for one of another name."""
    return f"the model called {written[:64]!r}, which was taken for {declared!r}"
