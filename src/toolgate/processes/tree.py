"""Kill a process with all its descendants, even those that left its process group.

On Linux a worker is the subreaper of its descendants, so they all stay below it for as long as it lives. On other systems
only the process group is killed.
"""

import os
import signal
from collections.abc import Iterator
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
    for _ in kill_tree_in_steps(leader):
        pass


def kill_tree_in_steps(leader: int) -> Iterator[None]:
    """Do the same and yield after each process and thread, thousands of which take seconds.

    Descendants are stopped when they are found: until they are killed, none starts another, or reaps one, whose id another
    process could get.
    """
    if leader != os.getpid():
        _send(leader, signal.SIGSTOP)
    for _ in range(_ROUNDS):  # a process that was just being started is found in the next round
        descendants: list[int] = []
        yield from _stop_descendants(leader, descendants)
        if not descendants:
            break
        for pid in descendants:
            _send(pid, signal.SIGKILL)
            yield
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _stop_descendants(pid: int, found: list[int]) -> Iterator[None]:
    """Stop the living processes below this one and append them, parents first; yields after each file that is read."""
    parents = [pid]
    while parents:
        children: list[int] = []
        with suppress(OSError):  # the parent has exited meanwhile
            for task in Path(f"/proc/{parents.pop()}/task").iterdir():
                children += [int(child) for child in (task / "children").read_text().split()]
                yield
        for child in children:
            if _is_alive(child):
                _send(child, signal.SIGSTOP)
                found.append(child)
            yield
        parents += children


def _is_alive(pid: int) -> bool:
    # `4711 (name) S 1 …`: the state follows the name, which may hold parentheses itself.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    return False
