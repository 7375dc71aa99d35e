"""Parse a docstring: its first paragraph, and the description of each parameter. Knows nothing of type hints."""

import inspect
import re

# Google's style, `Args:` with an entry such as `name (int): text` on each line, and Sphinx's `:param int name: text`.
_SECTION = re.compile(r"^(args|arguments|parameters|params):\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"\*{0,2}(\w++)\s*+(?:\([^)]*+\)\s*+)?:\s*+(.*)")
_FIELD = re.compile(r":param\s([^:]*+):\s*+(.*)")


def summary(docstring: str | None) -> str:
    """Return the first paragraph as one line; empty if there is none."""
    first = inspect.cleandoc(docstring or "").split("\n\n", 1)[0]
    lines = [line.strip() for line in first.splitlines()]
    return " ".join(line for line in lines if line and _field(line) is None)


def parameters(docstring: str | None) -> dict[str, str]:
    """Return the descriptions of parameters in an `Args:` section or in `:param name:` fields."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    descriptions = _section(lines)
    name = ""
    for line in map(str.strip, lines):
        entry = _field(line)
        if entry is not None:
            name = entry[0]
            descriptions[name] = entry[1]
        elif not line or line.startswith(":"):  # such as `:returns:`
            name = ""
        elif name:
            descriptions[name] = f"{descriptions[name]} {line}".strip()
    return descriptions


def _section(lines: list[str]) -> dict[str, str]:
    start = next((index + 1 for index, line in enumerate(lines) if _SECTION.match(line.strip())), None)
    if start is None:
        return {}
    descriptions: dict[str, str] = {}
    name, depth = "", None
    for line in lines[start:]:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break
        # The first entry sets the depth of all; what is deeper continues a description, even if it has a colon.
        depth = indent if depth is None and line.strip() else depth
        entry = _ENTRY.match(line.strip()) if indent == depth else None
        if entry:
            name, descriptions[entry[1]] = entry[1], entry[2].strip()
        elif name and line.strip():
            descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    return descriptions


def _field(line: str) -> tuple[str, str] | None:
    """Parse a `:param type name:` line into the parameter's name and description."""
    found = _FIELD.match(line)
    name = found[1].split()[-1:] if found else []
    name = [one.removeprefix("*").removeprefix("*") for one in name]
    return (name[0], found[2].strip()) if found and name and name[0].isidentifier() else None
