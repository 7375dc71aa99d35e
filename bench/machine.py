"""Describes the machine the figures come from."""

import os
import platform
from pathlib import Path

import psutil

from bench.figures import Machine


def describe() -> Machine:
    """The machine as it is before the run."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
