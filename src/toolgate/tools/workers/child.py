"""The worker process: `python -m toolgate.tools.workers.child`, spoken to over its standard input and output.

Before any tool's code is loaded, both are moved out of its reach: what a tool prints goes to the log, and it reads nothing.
One question is answered at a time, on the main thread; another thread listens, so that a busy tool can be cancelled.
"""

import asyncio
import inspect
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from toolgate.processes.tree import adopt_orphans, end_tree
from toolgate.tools.authoring.authored import preparation_of
from toolgate.tools.authoring.cancellation import CancellationTokenSource
from toolgate.tools.authoring.definition import Definition, Step
from toolgate.tools.authoring.jsonable import whole_characters
from toolgate.tools.authoring.loading import BrokenPlace, Place, load
from toolgate.tools.authoring.parts import Progress, ToolInvocationToken
from toolgate.tools.authoring.registry import Registry
from toolgate.tools.authoring.results import output_of, told
from toolgate.tools.authoring.signature import BadTool, Call
from toolgate.tools.tool import Progress as Report
from toolgate.tools.workers import frames
from toolgate.wire.lengths import read_framed

_REPORTS_A_SECOND = 50
_LONGEST_MESSAGE = 1000


class Pipes:
    """Both ends of the conversation, hidden from the tools."""

    def __init__(self) -> None:
        self._incoming: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._outgoing = os.dup(1)
        self._lock = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        os.register_at_fork(after_in_child=self._cut)

    def read(self) -> bytes | None:
        """The next message's body; None when the server is gone."""
        return read_framed(self._incoming.read)

    def write(self, frame: bytes) -> None:
        """Send it whole."""
        rest = memoryview(frame)
        with self._lock:
            while rest:
                rest = rest[os.write(self._outgoing, rest) :]

    def _cut(self) -> None:
        """A copy of this process that a tool forks must neither answer for it nor keep the pipe open."""
        os.close(self._outgoing)
        self._outgoing = -1


class Child:
    """Answers questions, one at a time."""

    def __init__(self, pipes: Pipes, limits: frames.Setup) -> None:
        self._pipes = pipes
        self._limits = limits
        self._questions: queue.SimpleQueue[frames.Question] = queue.SimpleQueue()
        self._cancellation = CancellationTokenSource()
        self._loaded: dict[Place, dict[str, Definition]] = {}
        self._registry = Registry()
        self._runner: asyncio.Runner | None = None

    def listen(self) -> None:
        """Take questions and cancellations until the server goes away, then end with everything that was started."""
        while (body := self._pipes.read()) is not None:
            match frames.decode_question(body):
                case frames.Cancel():
                    self._cancellation.cancel()
                case frames.Describe() | frames.Prepare() | frames.Invoke() as question:
                    self._cancellation = CancellationTokenSource()
                    self._questions.put(question)
        end_tree(os.getpid())

    def serve(self) -> None:
        """Answer for ever, or until memory ran out: what is left of the process then cannot be trusted."""
        exhausted = False
        while not exhausted:
            question = self._questions.get()
            try:
                with self._registry.current():
                    frame = self._framed(self._answer(question))
            except (BrokenPlace, BadTool) as error:
                frame = frames.encode(frames.Failed(str(error)))
            except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:  # noqa: BLE001 - the tool boundary
                exhausted = isinstance(error, MemoryError)
                frame = frames.encode(frames.Failed(told(error), last=exhausted))
            self._pipes.write(frame)

    def _answer(self, question: frames.Question) -> frames.Answer:
        match question:
            case frames.Describe(place):
                return frames.Tools(tuple(map(_described, self._tools(place).values())))
            case frames.Prepare(place, tool, arguments):
                prepare = self._definition(place, tool).prepare
                prepared = self._run(prepare, arguments, ToolInvocationToken()) if prepare else None
                return frames.Prepared(preparation_of(prepared))
            case frames.Invoke(place, tool, arguments, call):
                value = self._run(self._definition(place, tool).invoke, arguments, call)
                return frames.encode_output(output_of(value, self._limits.output))

    def _framed(self, answer: frames.Answer) -> bytes:
        frame = frames.encode(answer)
        if len(frame) <= frames.longest(self._limits.output):
            return frame
        return frames.encode(frames.Failed(f"The tool gave more output than is taken: {len(frame):,} bytes as JSON."))

    def _definition(self, place: Place, name: str) -> Definition:
        """The tool; a module that another place had loaded before may have given its tools to that one."""
        for tools in (self._tools(place), *self._loaded.values()):
            if name in tools:
                return tools[name]
        raise BadTool(f"{place.label} has no tool `{name}` any more.")

    def _tools(self, place: Place) -> dict[str, Definition]:
        if place not in self._loaded:
            self._loaded[place] = {definition.spec.name: definition for definition in load(place)}
            for definition in self._loaded[place].values():
                with suppress(BadTool):  # the server refuses a second tool of one name, and says so
                    self._registry.define(definition)
        return self._loaded[place]

    def _run(self, step: Step, arguments: Mapping[str, Any], invocation: ToolInvocationToken) -> Any:
        _limit_cpu(self._limits.cpu)
        call = Call(self._cancellation.token, Progress(Reports(self._pipes)), invocation)
        if step.blocks:
            return step.run(arguments, call)
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_cancellable(step, arguments, call))


class Reports:
    """Passes a tool's reports on, but not more of them than a person could read."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._left = float(_REPORTS_A_SECOND)
        self._last = time.monotonic()

    def __call__(self, report: Report) -> None:
        """Send it, unless there were too many in the last second."""
        now = time.monotonic()
        self._left = min(_REPORTS_A_SECOND, self._left + (now - self._last) * _REPORTS_A_SECOND)
        self._last = now
        if self._left < 1:
            return
        self._left -= 1
        message = None if report.message is None else whole_characters(str(report.message)[:_LONGEST_MESSAGE])
        self._pipes.write(frames.encode(frames.Told(message, report.done, report.total)))


async def _cancellable(step: Step, arguments: Mapping[str, Any], call: Call) -> Any:
    """Run async code so that the token's cancellation is its task's, too."""
    task = asyncio.current_task()
    assert task is not None  # we are inside one
    stop = asyncio.get_running_loop().call_soon_threadsafe
    with call.token.on_cancellation_requested(lambda: stop(task.cancel)):
        value = step.run(arguments, call)
        return await value if inspect.isawaitable(value) else value


def _described(definition: Definition) -> frames.Described:
    prepares = definition.prepare is not None
    return frames.Described(definition.spec, definition.worker, prepares, definition.place)


def _limit(memory: int) -> None:
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory)):
        with suppress(ValueError, OSError):  # the system has a lower limit already, or none of this kind
            resource.setrlimit(kind, (most, most))


def _limit_cpu(seconds: int) -> None:
    """Let the system itself end a call that computes for so long, counted from now."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(ValueError, OSError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, most))


def main() -> None:
    """Be a worker until the server goes away."""
    pipes = Pipes()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the real one still
    os.environ.pop("PYTHONPATH", None)  # it was for us, not for what tools start
    first = pipes.read()
    setup = frames.decode_question(first) if first is not None else None
    if not isinstance(setup, frames.Setup):
        return
    adopt_orphans()
    _limit(setup.memory)
    child = Child(pipes, setup)
    threading.Thread(target=child.listen, name="toolgate-listener", daemon=True).start()
    child.serve()


if __name__ == "__main__":
    main()
