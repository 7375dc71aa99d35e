"""Read a configuration file, when an editor has finished writing it. Does not know its content."""

import errno
import os
import stat
from pathlib import Path
from time import sleep, time

# Guards against a log or a database that is given as the configuration; real files have some kilobytes.
MAX_FILE_BYTES = 4 * 1024 * 1024

# Seconds without a change after which a file counts as written: some editors truncate a file and write it again.
QUIET_SECONDS = 0.2
# A file that never stops changing is read all the same.
_MAX_SECONDS = 5.0


def wait_until_settled(path: Path) -> None:
    """Return when the file has not changed for `QUIET_SECONDS`, or after 5 seconds."""
    before: tuple[int, int, int] | None = None
    stamp: tuple[int, int, int] | None
    for number in range(round(_MAX_SECONDS / QUIET_SECONDS)):
        try:
            stat = path.stat()
            # Editors that write a new file and rename it change the inode, even if size and time are the same.
            stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
        except OSError:
            stamp = None
        if (number and stamp == before) or (stamp is not None and time() - stamp[0] / 1e9 >= QUIET_SECONDS):
            return
        before = stamp
        sleep(QUIET_SECONDS)


def read_file(path: Path, *, regular: bool) -> bytes:
    """Read the file up to one byte more than `MAX_FILE_BYTES`, by which a larger one is recognised.

    A pipe or a device is an OSError if the file must be `regular`: opening it never waits for a writer then.
    """
    # O_NONBLOCK lets a FIFO open without a writer; only then can it be recognised. An opener, because `os.fdopen` does not
    # close the descriptor of a folder that it refuses.
    nonblocking = os.O_NONBLOCK if regular else 0
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | nonblocking)) as file:
        if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is a pipe or a device")
        return file.read(MAX_FILE_BYTES + 1)
