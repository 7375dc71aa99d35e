"""Send SIGHUP to this process when the configuration file was saved, for `serve --reload`."""

import os
import signal
import threading
from pathlib import Path
from typing import TypeAlias

# Polling works on every file system, network drives and mounts of containers included.
INTERVAL = 0.5
Stamp: TypeAlias = tuple[int, int, int]


def watch_config(path: Path, every: float = INTERVAL) -> threading.Event:
    """Poll the file in a thread that ends with the process or when the returned event is set."""
    stopped = threading.Event()
    threading.Thread(target=_poll, args=(path, every, _stamp(path), stopped), daemon=True, name="config-watch").start()
    return stopped


def _poll(path: Path, every: float, seen: Stamp | None, stopped: threading.Event) -> None:
    before = seen
    while not stopped.wait(every):
        last, before = before, _stamp(path)
        # An editor may be in the middle of saving: the file must be the same at two polls, and not empty.
        if before is None or before != last or before == seen or not before[1]:
            continue
        # Without a handler the signal would end the process; `seen` stays, so that the next poll tries again.
        if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, None):
            continue
        seen = before
        os.kill(os.getpid(), signal.SIGHUP)


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
