"""Name nodes so that others on the same machine can see whether their process lives, and need not wait for a dead one."""

import os
import platform
from pathlib import Path

from toolgate.conversation.random_ids import random_suffix

_UNKNOWN = "?"


def this_node() -> str:
    """Return a name that is unique for ever: the machine, the process, its start time, and random characters."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}:{random_suffix(8)}"


def is_gone(node: str) -> bool:
    """Return whether the process of this node has ended; of processes on other machines that is not known."""
    match node.split(":"):
        case [machine, process, started, _] if machine == _machine() and process.isdecimal():
            current = _start_time(int(process))
            return current != started and _UNKNOWN not in (current, started)
        case _:
            return False


def _machine() -> str:
    """Return the name of the machine, or of a container on it, within which process ids are unique."""
    # Two containers on one machine may have one host name and a process 1 each.
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{platform.node()}/{namespace}".replace(":", "-")


def _start_time(process: int) -> str:
    """Return the start time of a process, by which it differs from a later one of the same id; empty if there is none.

    `_UNKNOWN` if it cannot be read.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else _without_proc(process)
    except OSError:  # this process has no descriptors left, say
        return _UNKNOWN
    # `4711 (name) S 1 …`: after the name, which may hold parentheses itself, come the state and as 22nd the start time.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _without_proc(process: int) -> str:
    """Return a constant if there is a process of this id: where there is no /proc its start time is not known."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "there"
