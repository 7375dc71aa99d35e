"""Read a configuration file, when an editor has finished writing it. Does not know its content."""

import errno
import os
import stat
from pathlib import Path
from time import sleep, time
from typing import TypeAlias

MAX_FILE_BYTES = 4 * 1024 * 1024

QUIET_SECONDS = 0.2
"""Seconds without a change after which a file counts as written."""
_MAX_SECONDS = 5.0

_Stamp: TypeAlias = tuple[int, int, int]


def wait_until_settled(path: Path) -> None:
    """Return when the file has not changed for `QUIET_SECONDS`, or after 5 seconds."""
    before: _Stamp | None = None
    for number in range(round(_MAX_SECONDS / QUIET_SECONDS)):
        stamp = _stamp(path)
        if (number and stamp == before) or (stamp is not None and time() - stamp[0] / 1e9 >= QUIET_SECONDS):
            return
        before = stamp
        sleep(QUIET_SECONDS)


def read_file(path: Path, *, regular: bool) -> bytes:
    """Read the file up to one byte more than `MAX_FILE_BYTES`, by which a larger one is recognised.

    A pipe or a device is an OSError if the file must be `regular`: opening it never waits for a writer then.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if regular else 0)), "rb") as file:
        if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is a pipe or a device")
        return file.read(MAX_FILE_BYTES + 1)


def _stamp(path: Path) -> _Stamp | None:
    """Return values that differ after a change; None while there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
