"""The names of nodes: a name tells where its process can be looked for, so that nobody waits for one that is dead."""

import os
import platform
from pathlib import Path

from toolgate.conversation.ids import mint


def this_node() -> str:
    """A name that no other node has or ever had: the machine, the process, when that began, and something random."""
    return f"{_machine()}:{os.getpid()}:{_began(os.getpid())}:{mint(8)}"


def is_gone(node: str) -> bool:
    """Whether the process of this node ran on this machine and does not any more; of other machines nothing is known."""
    match node.split(":"):
        case [machine, process, began, _] if machine == _machine() and process.isdecimal():
            return _began(int(process)) != began
        case _:
            return False


def _machine() -> str:
    """Where a process can be looked for by its number: a machine, or a container on it."""
    try:
        inside = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        inside = 0
    return f"{platform.node()}/{inside}".replace(":", "-")


def _began(process: int) -> str:
    """When a process began, which tells it from another that was given the same number; empty if there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else _is_there(process)
    except OSError:
        return "?"
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _is_there(process: int) -> str:
    """Where there is no /proc a number is all there is to know a process by."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "there"
