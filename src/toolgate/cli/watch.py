"""Saving the configuration file has the effect of SIGHUP, for `serve --reload`."""

import os
import signal
import threading
from pathlib import Path

EVERY = 0.5


def watch(path: Path, every: float = EVERY) -> threading.Event:
    """Look at the file again and again, from a thread that ends with the process or when the event is set."""
    enough = threading.Event()
    threading.Thread(target=_look, args=(path, every, _stamp(path), enough), daemon=True, name="config-watch").start()
    return enough


def _look(path: Path, every: float, seen: tuple[int, int] | None, enough: threading.Event) -> None:
    while not enough.wait(every):
        now = _stamp(path)
        # An editor may be between two steps of saving, and SIGHUP kills who does not listen for it yet.
        if now is None or now == seen or signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, None):
            continue
        seen = now
        os.kill(os.getpid(), signal.SIGHUP)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
