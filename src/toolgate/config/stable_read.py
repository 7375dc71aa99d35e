"""Wait until an editor has finished writing a configuration file. Does not know its content."""

from pathlib import Path
from time import sleep, time
from typing import TypeAlias

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


def _stamp(path: Path) -> _Stamp | None:
    """Return values that differ after a change; None while there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
