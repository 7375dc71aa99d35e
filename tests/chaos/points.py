"""Kill points of the server: functions of its own code, wrapped from outside and in this process alone.

A release knows nothing of them. They are named by reference, so that none is lost by a rename.
"""

import functools
import inspect
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from toolgate.api.chat import ChatHandler
from toolgate.api.responses.save import FinishedResponseSaver
from toolgate.runs.journal import DurableRunJournal
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.database import Database
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.responses import ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.storage.streams import StreamStore
from toolgate.tools.execution.stored_turns import StoredRunJournal
from toolgate.tools.runner import ToolRunner
from toolgate.upstreams.transport.response_reader import ResponseReader


class Point(Struct, frozen=True):
    """Just `when` a function is called, or has returned; `fault` is the kill point that it stands for."""

    name: str
    fault: str
    at: Callable[..., Any]
    when: Literal["before", "after"] = "after"


POINTS = (
    Point("accepted", "K0", ChatHandler.prepare, "before"),
    Point("response-kept", "K1", ResponseStore.save),
    Point("claimed", "K1", RunStore.claim),
    Point("items-kept", "K1", ConversationStore.append),
    Point("streaming", "K2", ResponseReader.feed),
    Point("frames-kept", "K2", StreamStore.append),
    Point("calls-kept", "K3", StoredRunJournal.progressed),
    Point("round-kept", "K3", DurableRunJournal.answered),
    Point("asked", "K4", ApprovalStore.claim),
    Point("decided", "K5", ApprovalStore.answer),
    Point("intended", "K6", StoredRunJournal.starting),
    Point("step-intended", "K6", DurableRunJournal.starting),
    Point("done", "K7", ToolRunner._output),
    Point("result-kept", "K8", HiddenTurnStore.keep),
    Point("step-ended", "K8", DurableRunJournal.ended),
    Point("turn-kept", "K9", StoredRunJournal.finished),
    Point("answer-kept", "K9", FinishedResponseSaver.save),
    Point("key-claimed", "K10", IdempotencyStore.claim),
    Point("keeping-answer", "K10", IdempotencyStore.keep, "before"),
    Point("key-answered", "K10", IdempotencyStore.keep),
    Point("writing", "K", Database.change, "before"),
    Point("written", "K", Database.change),
)
NAMES = tuple([point.name for point in POINTS])


class Fuse:
    """Counts how often points are passed, and ends the process at the one that it was set to."""

    def __init__(self, notes: Path | None = None) -> None:
        """`notes` is a file that gets the name of every point that is passed."""
        self._left: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._notes = notes
        self._seen: Counter[str] = Counter()

    def set(self, order: str) -> None:
        """Die at the n-th time that a point is passed from now on, by `name:n`."""
        name, _, number = order.partition(":")
        if name not in NAMES:
            raise ValueError(f"there is no point {name!r}")
        with self._lock:
            self._left = (name, int(number or 1))

    def passed(self, name: str) -> None:
        """A point is passed."""
        with self._lock:
            if self._notes is not None and not self._seen[name]:
                self._seen[name] += 1
                with self._notes.open("a") as notes:
                    notes.write(f"{name}\n")
            if self._left is None or self._left[0] != name:
                return
            if self._left[1] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left = (name, self._left[1] - 1)


def install(fuse: Fuse) -> None:
    """Lay the fuse through every point."""
    for point in POINTS:
        owner, name = found(point)
        setattr(owner, name, _wrapped(getattr(owner, name), point, fuse.passed))


def found(point: Point) -> tuple[Any, str]:
    """Return the owner of the function and its name there; AttributeError if it is not where it was defined."""
    owner: Any = sys.modules[point.at.__module__]
    *outer, name = point.at.__qualname__.split(".")
    for one in outer:
        owner = getattr(owner, one, None)
    # Two points may be at one function: what wraps it for the first is looked through.
    if owner is None or name not in vars(owner) or inspect.unwrap(vars(owner)[name]) is not point.at:
        raise AttributeError(f"{point.at.__qualname__} is gone: the kill point {point.name!r} must move")
    return owner, name


def _wrapped(function: Callable[..., Any], point: Point, passed: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def later(*args: Any, **options: Any) -> Any:
        if point.when == "before":
            passed(point.name)
        given = await function(*args, **options)
        if point.when == "after":
            passed(point.name)
        return given

    @functools.wraps(function)
    def at_once(*args: Any, **options: Any) -> Any:
        if point.when == "before":
            passed(point.name)
        given = function(*args, **options)
        if point.when == "after":
            passed(point.name)
        return given

    return later if inspect.iscoroutinefunction(function) else at_once
