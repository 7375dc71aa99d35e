"""How much processor time the steps of an event loop take, which does not depend on what else the machine does."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any


class Steps:
    """The longest step of the loop so far, in seconds of the thread's processor time, and what it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.what = ""
        self.count = 0


@contextlib.contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure each callback and task step that asyncio's own loops run meanwhile.

    Garbage is not collected in the meantime: most of what there is to search is the test runner's.
    """
    steps = Steps()
    handles: Any = asyncio.Handle  # its `_run` is private, and the one place through which all steps go
    run = handles._run

    def measured(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        taken = time.thread_time() - begun
        steps.count += 1
        if taken > steps.longest:
            steps.longest, steps.what = taken, repr(handle)[:300]

    handles._run = measured
    gc.disable()
    try:
        yield steps
    finally:
        gc.enable()
        handles._run = run
