"""Ends a process with all that it started, also what left its process group.

A worker is the reaper of its orphans (Linux), so everything it started stays below it for as long as it lives.
Elsewhere than on Linux only the process group is ended.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_ROUNDS = 5
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of whatever its descendants leave behind, where the system can."""
    import ctypes  # only workers need it

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(leader: int) -> None:
    """Kill a process group's leader, its group and every other descendant."""
    if leader != os.getpid():
        _send(leader, signal.SIGSTOP)  # so that it starts nothing while we look
    for _ in range(_ROUNDS):  # what was being started while we looked is seen the next time
        below = _descendants(leader)
        if not below:
            break
        for pid in below:
            _send(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The living processes below this one, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        waiting += children
        found += [child for child in children if _lives(child)]
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    return False
