"""Ports of 127.0.0.1 for tests: those that refuse connections, and those at which a server can be started.

A port that a closed socket had may be anyone's a moment later: other tests, and other processes, get theirs from the kernel.
"""

import os
import random
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# Below the ports from which the kernel chooses, of which the first is 32768 by default.
_FIRST, _LAST = 20_000, 32_000
_PROCESSES = 24  # of pytest, each with ports of its own


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections meanwhile: a socket is bound to it and does not listen."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def free_port() -> int:
    """A port at which nothing listens, and which only another call of this function returns again."""
    share = (_LAST - _FIRST) // _PROCESSES
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % _PROCESSES
    for port in random.sample(range(_FIRST + share * worker, _FIRST + share * (worker + 1)), share):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("every port of this process is in use")
