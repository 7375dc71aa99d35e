"""An asyncio loop that measures the processor time of every callback, and a watch over the threads beside it.

uvloop, which serves in production, runs its handles in C and cannot be measured from outside, so the law is held on
asyncio's own selector loop: the protocol, the application and everything below are the same code.

What is measured, and why a busy machine does not change it:

- A *step* is one run of one handle: a callback, a timer, or a task from one await to the next. It is charged the CPU time
  of the loop's thread (`time.thread_time`), so waiting for a processor, for the GIL or for the disk counts nothing and a
  garbage collection that happens within the step counts as part of it.
- A *hold* is a stretch of work in another thread that keeps the GIL, as one long call of a C library does: the loop's thread
  uses nothing meanwhile and yet cannot run. A watch thread wakes every few milliseconds, and a thread that shares the GIL
  gives it up within one switch interval of 5 ms. If the watch was blocked for several of them, then what another thread
  used meanwhile was a hold. Time in which the watch was ready to run but had no processor is not counted as blocked: the
  kernel says in `/proc/self/task/*/schedstat` for how long a thread waited for a processor. Where there is
  no such file, holds are not measured.

The watch also looks at the stack of a step that has used more than half of its limit, so that the report names the line.
It must not know what is served.
"""

import asyncio
import collections
import contextlib
import json
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct

LIMIT = 0.05
"""Seconds of CPU that a step or a hold may use."""
PERIOD = 0.004
_THREAD_CLOCK = 6  # Linux: with a thread's number above it, the id of that thread's CPU clock
_FRAMES = 14


class Overrun(Struct):
    """A step or a hold that used more than the limit."""

    kind: str
    name: str
    seconds: float
    stacks: list[str]

    def __str__(self) -> str:
        places = "\n".join(f"--- seen at\n{stack}" for stack in self.stacks)
        return f"{self.kind} of {self.seconds * 1000:.0f} ms: {self.name}\n{places}"


class Monitor:
    """Collects the overruns of one loop, from its steps and from the watch thread."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self.steps = 0
        self.longest = 0.0
        self.overruns: list[Overrun] = []
        self._began: float | None = None
        self._stacks: list[str] = []
        self._loop_thread: threading.Thread | None = None
        self._watching = threading.Event()
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    def start(self) -> None:
        """Watch the threads beside the one that calls, which is the loop's."""
        self._loop_thread = threading.current_thread()
        self._watch = threading.Thread(target=self._keep_watch, name="watch", daemon=True)
        self._watch.start()
        self._watching.wait()

    def stop(self) -> None:
        """End the watch."""
        self._stop.set()
        if self._watch is not None:
            self._watch.join()

    def clear(self) -> None:
        """Forget what was found so far."""
        self.overruns.clear()
        self.steps, self.longest = 0, 0.0

    def run(self, handle: asyncio.Handle) -> None:
        """Run one handle and note it if it used too much."""
        self._stacks = []
        self._began = began = time.thread_time()
        try:
            handle._run()
        finally:
            self._began = None
            used = time.thread_time() - began
            self.steps += 1
            if used > self.longest:
                self.longest = used
            if used > self.limit:
                self.overruns.append(Overrun("step", _name(handle), used, self._stacks))

    def _keep_watch(self) -> None:
        own = threading.get_native_id()
        self._watching.set()
        stopped = _delay(own) is None
        while not stopped:
            # Files are read outside of the measured stretch: each read gives the GIL up and must get it again.
            delayed = _delay(own) or 0.0
            before, began = self._used(), time.monotonic()
            stopped = self._stop.wait(PERIOD)
            passed, after = time.monotonic() - began, self._used()
            self._look_at_step()
            held = {thread: cpu - before.get(thread, 0.0) for thread, cpu in after.items()}
            if passed > self.limit / 2 and any(seconds > self.limit for seconds in held.values()):
                blocked = passed - PERIOD - ((_delay(own) or 0.0) - delayed)
                for thread, seconds in held.items():
                    if seconds > self.limit and blocked > self.limit / 2 and thread is not self._loop_thread:
                        self.overruns.append(Overrun("hold", thread.name, seconds, [_stack(thread)]))

    def _used(self) -> dict[threading.Thread, float]:
        """The CPU seconds of every thread but the watch."""
        used = {}
        for thread in threading.enumerate():
            if thread is not self._watch and thread.native_id is not None:
                with contextlib.suppress(OSError):  # it has ended
                    used[thread] = time.clock_gettime((~thread.native_id << 3) | _THREAD_CLOCK)
        return used

    def _look_at_step(self) -> None:
        began, thread = self._began, self._loop_thread
        if began is None or thread is None or thread.ident is None or len(self._stacks) > 2:
            return
        stacks = self._stacks
        used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) - began
        if used > self.limit / 2 and self._began == began:
            stacks.append(_stack(thread))


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A selector loop whose handles are all run by a monitor."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._ready: Any = _MeasuredQueue(monitor)


class _MeasuredQueue(collections.deque[Any]):
    """The queue of handles that are ready: each is measured when it leaves."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor

    def popleft(self) -> Any:
        return _Measured(super().popleft(), self._monitor)


class _Measured:
    """A handle in the form that the loop runs."""

    __slots__ = ("_cancelled", "_handle", "_monitor")

    def __init__(self, handle: asyncio.Handle, monitor: Monitor) -> None:
        self._handle = handle
        self._monitor = monitor
        self._cancelled = handle._cancelled

    def _run(self) -> None:
        self._monitor.run(self._handle)


def _delay(thread: int) -> float | None:
    """Seconds for which a thread was ready to run and had no processor; None where the kernel does not count them."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()[1]) / 1e9
    except OSError:
        return None


def _name(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return f"task {coroutine.__qualname__} ({coroutine.cr_code.co_filename})"
    return f"callback {getattr(callback, '__qualname__', repr(callback)[:200])}"


def _stack(thread: threading.Thread) -> str:
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "(ended)"
    lines = [f"{one.filename}:{one.lineno} {one.name}: {one.line}" for one in traceback.extract_stack(frame)]
    return "\n".join(lines[-_FRAMES:])


def encoded(overruns: list[Overrun]) -> str:
    """Overruns as one line of JSON."""
    return json.dumps([[one.kind, one.name, one.seconds, one.stacks] for one in overruns])


def decoded(line: str) -> list[Overrun]:
    """The overruns that a line holds."""
    return [Overrun(*fields) for fields in json.loads(line)]
