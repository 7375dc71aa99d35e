"""Kill a process with all its descendants, even those that left its process group.

On Linux a worker is the subreaper of its descendants, so they all stay below it for as long as it lives. On other systems
only the process group is killed.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_ROUNDS = 5
# From <linux/prctl.h>; Python has no name for it.
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of the orphans of its descendants, where the system supports it."""
    import ctypes  # only workers need it

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_tree(leader: int) -> None:
    """Kill a process group's leader, its group and every other descendant."""
    if leader != os.getpid():
        _send(leader, signal.SIGSTOP)  # so that it starts nothing meanwhile
    for _ in range(_ROUNDS):  # a process that was just being started is found in the next round
        descendants = _descendants(leader)
        if not descendants:
            break
        for pid in descendants:
            _send(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Return the living processes below this one, parents first."""
    found: list[int] = []
    parents = [pid]
    while parents:
        children: list[int] = []
        with suppress(OSError):  # the parent has exited meanwhile
            for task in Path(f"/proc/{parents.pop()}/task").iterdir():
                children += [int(child) for child in (task / "children").read_text().split()]
        parents += children
        found += [child for child in children if _is_alive(child)]
    return found


def _is_alive(pid: int) -> bool:
    # `4711 (name) S 1 …`: the state follows the name, which may hold parentheses itself.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    return False
