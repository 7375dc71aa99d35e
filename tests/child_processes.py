"""The processes that a test has started and not ended."""

import os

import psutil

_KEPT = ("postgres", "redis-server")
"""The databases that a session of tests shares."""


def living_children() -> list[psutil.Process]:
    """Return those that still run."""
    if not has_child():
        return []
    return [child for child in psutil.Process().children(recursive=True) if _counts(child)]


def has_child() -> bool:
    """Whether this process has a child, be it a zombie: one system call, where psutil reads what `/proc` says of all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _counts(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and child.name() not in _KEPT
    except psutil.NoSuchProcess:
        return False
