"""Measures a process tree from outside: CPU seconds and resident memory; knows nothing of what the tree does."""

import contextlib
import time

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its living descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system seconds the tree has used so far, children already gone included."""
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, OSError):  # a child that ends right now is its parent's to count
            total += _own_cpu(process) + _dead_children_cpu(process)
    return total


def _own_cpu(process: psutil.Process) -> float:
    # The process's POSIX CPU clock counts nanoseconds where /proc/PID/stat counts hundredths of a second.
    # Linux forms its id from the pid; elsewhere psutil's coarser figure has to do.
    if psutil.LINUX:
        return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return float(times.user + times.system)


def _dead_children_cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def resident_bytes(pid: int) -> int:
    """Resident memory of the tree; pages its processes share count in each, so this is never too low."""
    return sum(int(process.memory_info().rss) for process in tree(pid))
