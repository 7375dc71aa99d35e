"""A server that can be told to die: `python -m tests.chaos.launch serve …` is `toolgate serve …` with a fuse in it.

FAULT_KILL_AT=name:n sets the fuse at the start, a line on standard input sets it later. When standard input ends, so does
the process: whoever started it is gone.
"""

import os
import sys
import threading
from pathlib import Path

from tests.chaos.points import Fuse, install


def _listen(fuse: Fuse) -> None:
    for line in sys.stdin:
        fuse.set(line.strip())
    os._exit(1)


def main() -> None:
    """Lay the fuse, then be an ordinary server."""
    notes = os.environ.get("FAULT_NOTES")
    fuse = Fuse(Path(notes) if notes else None)
    install(fuse)
    if order := os.environ.get("FAULT_KILL_AT"):
        fuse.set(order)
    threading.Thread(target=_listen, args=(fuse,), daemon=True).start()
    from toolgate.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
