"""Serve one address with several processes.

The supervisor binds the address, starts workers (`process.py`) and replaces those that end (`pool.py`); it answers no
requests itself. A worker is the same server as one that runs alone. What exists once for all workers, it gets from the
supervisor (`client.py`, `hub.py`): limit counters, the sum of metrics, changed topics, the local model's engine.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolgate.config import Config


def how_many(config: "Config") -> int:
    """Return the number of workers of a configuration; its 0 stands for one per available processor."""
    if config.server.workers:
        return config.server.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
