"""The processes that a test has started and not ended."""

import psutil

_KEPT = ("postgres", "redis-server")
"""The databases that a session of tests shares."""


def living_children() -> list[psutil.Process]:
    """Return those that still run."""
    return [child for child in psutil.Process().children(recursive=True) if _counts(child)]


def _counts(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and child.name() not in _KEPT
    except psutil.NoSuchProcess:
        return False
