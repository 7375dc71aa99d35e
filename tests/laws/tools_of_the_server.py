"""Python tools that return as much as they are asked for; a measured server loads this file."""

import time
from typing import Any

from toolgate.lm import Annotations, tool

HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)


@tool(annotations=HARMLESS)
def repeat(text: str, count: int = 1) -> str:
    """Return a text many times over."""
    return text * count


@tool(annotations=HARMLESS)
def structure(kind: str, count: int) -> Any:
    """Return a value with many parts: `rows`, `numbers` or `nested`."""
    if kind == "rows":
        return [{"row": number, "name": f"n{number}"} for number in range(count)]
    if kind == "numbers":
        return list(range(count))
    value: list[Any] = []
    for _ in range(count):
        value = [value]
    return value


@tool(annotations=Annotations())
def harmful(text: str, rows: list[Any] | None = None) -> str:
    """Change something, after a person has consented."""
    time.sleep(0.01)
    return text[:10]
