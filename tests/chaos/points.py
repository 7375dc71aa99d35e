"""Where a server can be killed: named points of its own code, wrapped from outside and in this process alone.

A release knows nothing of them. A point that no longer exists is an error, so that none is lost by a rename.
"""

import functools
import importlib
import inspect
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct


class Point(Struct, frozen=True):
    """Just `when` a function is called, or has returned; `fault` is the kill point that it stands for."""

    name: str
    fault: str
    at: str
    when: Literal["before", "after"] = "after"


POINTS = (
    Point("accepted", "K0", "toolgate.server.endpoints:Conversations.question", "before"),
    Point("response-kept", "K1", "toolgate.storage.responses:ResponseStore.save"),
    Point("claimed", "K1", "toolgate.storage.runs:RunStore.claim"),
    Point("items-kept", "K1", "toolgate.storage.conversations:ConversationStore.append"),
    Point("streaming", "K2", "toolgate.upstreams.transport.incoming:Incoming.feed"),
    Point("frames-kept", "K2", "toolgate.storage.streams:StreamStore.append"),
    Point("calls-kept", "K3", "toolgate.server.workshop.journal:RunJournal.progressed"),
    Point("round-kept", "K3", "toolgate.runs.journal:StepJournal.answered"),
    Point("asked", "K4", "toolgate.storage.approvals:ApprovalStore.claim"),
    Point("decided", "K5", "toolgate.storage.approvals:ApprovalStore.answer"),
    Point("intended", "K6", "toolgate.server.workshop.journal:RunJournal.starting"),
    Point("step-intended", "K6", "toolgate.runs.journal:StepJournal.starting"),
    Point("done", "K7", "toolgate.tools.runner:Runner._once"),
    Point("result-kept", "K8", "toolgate.storage.rounds:RoundStore.keep"),
    Point("step-ended", "K8", "toolgate.runs.journal:StepJournal.ended"),
    Point("turn-kept", "K9", "toolgate.server.workshop.journal:RunJournal.finished"),
    Point("answer-kept", "K9", "toolgate.server.responses.keeper:Keeper.keep"),
    Point("key-claimed", "K10", "toolgate.storage.idempotency:IdempotencyStore.claim"),
    Point("keeping-answer", "K10", "toolgate.storage.idempotency:IdempotencyStore.keep", "before"),
    Point("key-answered", "K10", "toolgate.storage.idempotency:IdempotencyStore.keep"),
    Point("writing", "K", "toolgate.storage.database:Database.change", "before"),
    Point("written", "K", "toolgate.storage.database:Database.change"),
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
    """The class and the name of its method; AttributeError if it is there no more."""
    module, _, path = point.at.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for one in outer:
        owner = getattr(owner, one)
    if name not in vars(owner):
        raise AttributeError(f"{point.at} is gone: the kill point {point.name!r} must move")
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
