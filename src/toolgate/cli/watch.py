"""Saving the configuration file has the effect of SIGHUP, for `serve --reload`, once it has stopped changing."""

import os
import signal
import threading
from pathlib import Path
from typing import TypeAlias

EVERY = 0.5
Stamp: TypeAlias = tuple[int, int, int]


def watch(path: Path, every: float = EVERY) -> threading.Event:
    """Look at the file again and again, from a thread that ends with the process or when the event is set."""
    enough = threading.Event()
    threading.Thread(target=_look, args=(path, every, _stamp(path), enough), daemon=True, name="config-watch").start()
    return enough


def _look(path: Path, every: float, seen: Stamp | None, enough: threading.Event) -> None:
    before = seen
    while not enough.wait(every):
        last, before = before, _stamp(path)
        # An editor may be between two steps of saving: a file is read that was the same at two looks, and holds something.
        if before is None or before != last or before == seen or not before[1]:
            continue
        if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, None):  # it would kill who does not listen for it yet
            continue
        seen = before
        os.kill(os.getpid(), signal.SIGHUP)


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
