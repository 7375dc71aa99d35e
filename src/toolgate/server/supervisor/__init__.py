"""Several processes that serve one address, and the one that keeps them.

The supervisor (`crew.py`) binds the address, starts the workers and replaces those that die; it serves nobody itself.
A worker (`worker.py`) is the same server as one that runs alone, and asks its supervisor (`foreman.py`) for what there
must be one of: counters of limits, sums of metrics, the model on this machine, and word of what the others have changed.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolgate.config import Config


def how_many(config: "Config") -> int:
    """The workers that a configuration wants; 0 stands for one for each processor that we may use."""
    if config.server.workers:
        return config.server.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
