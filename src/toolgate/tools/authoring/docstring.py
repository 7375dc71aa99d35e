"""What a docstring tells a model: its first paragraph, and a line for each parameter. Knows nothing of hints."""

import inspect
import re

_SECTION = re.compile(r"^(args|arguments|parameters|params):\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"\*{0,2}(\w++)\s*+(?:\([^)]*+\)\s*+)?:\s*+(.*)")
_FIELD = re.compile(r":param\s([^:]*+):\s*+(.*)")


def summary(docstring: str | None) -> str:
    """The first paragraph as one line; empty where there is none."""
    first = inspect.cleandoc(docstring or "").split("\n\n", 1)[0]
    lines = [line.strip() for line in first.splitlines()]
    return " ".join(line for line in lines if line and _field(line) is None)


def parameters(docstring: str | None) -> dict[str, str]:
    """What an `Args:` section or `:param name:` fields say of each parameter."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    return {**_section(lines), **_fields(lines)}


def _section(lines: list[str]) -> dict[str, str]:
    start = next((index + 1 for index, line in enumerate(lines) if _SECTION.match(line.strip())), None)
    if start is None:
        return {}
    said: dict[str, str] = {}
    name, depth = "", None
    for line in lines[start:]:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break
        depth = indent if depth is None and line.strip() else depth
        entry = _ENTRY.match(line.strip()) if indent == depth else None
        if entry:
            name, said[entry[1]] = entry[1], entry[2].strip()
        elif name and line.strip():
            said[name] = f"{said[name]} {line.strip()}".strip()
    return said


def _fields(lines: list[str]) -> dict[str, str]:
    said: dict[str, str] = {}
    name = ""
    for line in map(str.strip, lines):
        entry = _field(line)
        if entry is not None:
            name = entry[0]
            said[name] = entry[1]
        elif not line or line.startswith(":"):
            name = ""
        elif name:
            said[name] = f"{said[name]} {line}".strip()
    return said


def _field(line: str) -> tuple[str, str] | None:
    """The parameter that a `:param type name:` line is about, and what it says."""
    found = _FIELD.match(line)
    name = found[1].split()[-1:] if found else []
    name = [one.removeprefix("*").removeprefix("*") for one in name]
    return (name[0], found[2].strip()) if found and name and name[0].isidentifier() else None
