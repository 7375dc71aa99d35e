"""Name nodes so that others on the same machine can see whether their process lives, and need not wait for a dead one."""

import os
import platform
from pathlib import Path

from toolgate.conversation.ids import random_suffix


def this_node() -> str:
    """Return a name that is unique for ever: the machine, the process, its start time, and random characters."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}:{random_suffix(8)}"


def is_gone(node: str) -> bool:
    """Return whether the process of this node has ended; of processes on other machines that is not known."""
    match node.split(":"):
        case [machine, process, started, _] if machine == _machine() and process.isdecimal():
            return _start_time(int(process)) != started
        case _:
            return False


def _machine() -> str:
    """Return the name of the machine, or of a container on it, within which process ids are unique."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{platform.node()}/{namespace}".replace(":", "-")


def _start_time(process: int) -> str:
    """Return the start time of a process, by which it differs from a later one of the same id; empty if there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else _without_proc(process)
    except OSError:
        return "?"
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
