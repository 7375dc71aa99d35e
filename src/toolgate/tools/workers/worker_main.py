"""The worker process, `python -m toolgate.tools.workers.worker_main`: answers requests over standard input and output.

Before any tool's code is loaded, both are moved out of its reach: what a tool prints goes to the log, and it reads nothing.
One request is answered at a time, on the main thread; another thread reads, so that a busy tool can be cancelled.
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

from toolgate.processes.tree import adopt_orphans, kill_tree
from toolgate.tools.authoring.cancellation import CancellationTokenSource
from toolgate.tools.authoring.definition import FunctionWithAsyncFlag, PythonToolDefinition
from toolgate.tools.authoring.in_process_tool import preparation_of
from toolgate.tools.authoring.language_model_types import ProgressReporter, ToolInvocationToken
from toolgate.tools.authoring.loading import CodeLoadError, ToolImportTarget, load
from toolgate.tools.authoring.registry import PythonToolRegistry
from toolgate.tools.authoring.results import error_text, output_of
from toolgate.tools.authoring.signature import BadTool, InjectableCallValues
from toolgate.tools.tool import CallProgressUpdate
from toolgate.tools.workers import frames
from toolgate.wire.length_prefix import read_prefixed

# A tool may report in a tight loop, and each report becomes an event for the client.
_REPORTS_PER_SECOND = 50
_MAX_MESSAGE = 1000


class ToolWorkerPipes:
    """The pipes from and to the server, hidden from the tools."""

    def __init__(self) -> None:
        self._incoming: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._outgoing = os.dup(1)
        self._lock = threading.Lock()
        # Descriptors are replaced and not `sys.stdin` and `sys.stdout`: code in C and the programs that a tool starts
        # use them, too. 0 becomes /dev/null, 1 the log on standard error.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        os.register_at_fork(after_in_child=self._close_in_child)

    def read(self) -> bytes | None:
        """Read the body of the next message; None when the server is gone."""
        return read_prefixed(self._incoming.read)

    def write(self, frame: bytes) -> None:
        """Send the whole frame."""
        rest = memoryview(frame)
        with self._lock:  # a tool may report its progress from several threads
            while rest:
                rest = rest[os.write(self._outgoing, rest) :]

    def _close_in_child(self) -> None:
        """Close the pipe in a process that a tool has forked: it must neither answer nor keep the pipe open."""
        os.close(self._outgoing)
        self._outgoing = -1


class ToolWorkerLoop:
    """Answers requests, one at a time."""

    def __init__(self, pipes: ToolWorkerPipes, limits: frames.ToolWorkerLimitsFrame) -> None:
        self._pipes = pipes
        self._limits = limits
        self._requests: queue.SimpleQueue[frames.WorkerRequest] = queue.SimpleQueue()
        self._cancellation = CancellationTokenSource()
        self._loaded: dict[ToolImportTarget, dict[str, PythonToolDefinition]] = {}
        self._registry = PythonToolRegistry()
        self._runner: asyncio.Runner | None = None

    def listen(self) -> None:
        """Receive requests and cancellations until the server goes away, then end with everything that was started."""
        while (body := self._pipes.read()) is not None:
            match frames.decode_request(body):
                case frames.ToolWorkerCancelFrame():
                    self._cancellation.cancel()
                case (
                    frames.ToolWorkerDescribeRequestFrame()
                    | frames.ToolWorkerPreviewRequestFrame()
                    | frames.ToolWorkerInvokeFrame() as request
                ):
                    # Made here and not by the main thread: a cancellation may follow before that takes the request.
                    self._cancellation = CancellationTokenSource()
                    self._requests.put(request)
        # The main thread may be in code that never returns, so that the process kills itself.
        kill_tree(os.getpid())

    def serve(self) -> None:
        """Answer until memory runs out: what is left of the process then cannot be trusted."""
        exhausted = False
        while not exhausted:
            request = self._requests.get()
            try:
                with self._registry.current():
                    frame = frames.encode(self._response(request))
                if len(frame) > frames.max_length(self._limits.output):
                    size = f"{len(frame):,} bytes as JSON"
                    frame = frames.encode(frames.ToolWorkerErrorFrame(f"The tool returned too much output: {size}."))
            except (CodeLoadError, BadTool) as error:
                frame = frames.encode(frames.ToolWorkerErrorFrame(str(error)))
            except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:  # noqa: BLE001 - the tool boundary
                exhausted = isinstance(error, MemoryError)
                frame = frames.encode(frames.ToolWorkerErrorFrame(error_text(error), last=exhausted))
            self._pipes.write(frame)

    def _response(self, request: frames.WorkerRequest) -> frames.WorkerResponse:
        match request:
            case frames.ToolWorkerDescribeRequestFrame(place):
                described = [
                    frames.WorkerToolInfo(one.spec, one.worker, one.prepare is not None, one.place)
                    for one in self._tools(place).values()
                ]
                return frames.WorkerToolList(tuple(described))
            case frames.ToolWorkerPreviewRequestFrame(place, tool, arguments):
                prepare = self._definition(place, tool).prepare
                prepared = self._run(prepare, arguments, ToolInvocationToken()) if prepare else None
                return frames.ToolWorkerPreviewResponseFrame(preparation_of(prepared))
            case frames.ToolWorkerInvokeFrame(place, tool, arguments, call):
                value = self._run(self._definition(place, tool).invoke, arguments, call)
                return frames.encode_output(output_of(value, self._limits.output))

    def _definition(self, place: ToolImportTarget, name: str) -> PythonToolDefinition:
        """Find the tool; if its module was first loaded by way of another place, it is registered there."""
        for tools in (self._tools(place), *self._loaded.values()):
            if name in tools:
                return tools[name]
        raise BadTool(f"{place.label} has no tool `{name}` any more.")

    def _tools(self, place: ToolImportTarget) -> dict[str, PythonToolDefinition]:
        if place not in self._loaded:
            self._loaded[place] = {definition.spec.name: definition for definition in load(place)}
            for definition in self._loaded[place].values():
                with suppress(BadTool):  # the server refuses a second tool of one name, and reports it
                    self._registry.define(definition)
        return self._loaded[place]

    def _run(self, step: FunctionWithAsyncFlag, arguments: Mapping[str, Any], invocation: ToolInvocationToken) -> Any:
        # The system itself ends a call that computes for so long, counted from now: SIGXCPU at the soft limit. The
        # hard limit stays, because it can never be raised again.
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        with suppress(ValueError, OSError):  # a lower limit is in force already
            soft_limit = int(time.process_time()) + self._limits.cpu + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft_limit, hard_limit))
        reports = ToolWorkerProgressThrottle(self._pipes)
        call = InjectableCallValues(self._cancellation.token, ProgressReporter(reports), invocation)
        try:
            if step.blocks:
                return step.run(arguments, call)
            # One loop for all calls of the process: tools keep clients and connections that belong to it.
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(_run_cancellable(step, arguments, call))
        finally:
            reports.close()


class ToolWorkerProgressThrottle:
    """Sends a tool's reports to the server, but not more of them than a person could read."""

    def __init__(self, pipes: ToolWorkerPipes) -> None:
        self._pipes = pipes
        self._left = float(_REPORTS_PER_SECOND)
        self._last = time.monotonic()
        self._sending = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Send no more reports: the server would take them for those of the next call, which may be another caller's."""
        with self._sending:
            self._closed = True

    def __call__(self, progress: CallProgressUpdate) -> None:
        """Send the report, unless the call has ended or there were too many in the last second."""
        with self._sending:  # a tool may go on in a thread or a task after its call has ended
            if not self._closed:
                self._send(progress)

    def _send(self, progress: CallProgressUpdate) -> None:
        now = time.monotonic()  # a token bucket
        self._left = min(_REPORTS_PER_SECOND, self._left + (now - self._last) * _REPORTS_PER_SECOND)
        self._last = now
        if self._left < 1:
            return
        self._left -= 1
        message = None if progress.message is None else progress.message[:_MAX_MESSAGE]
        self._pipes.write(frames.encode(frames.ToolWorkerProgressFrame(message, progress.done, progress.total)))


async def _run_cancellable(
    step: FunctionWithAsyncFlag, arguments: Mapping[str, Any], call: InjectableCallValues
) -> Any:
    """Run async code so that the token's cancellation also cancels the task."""
    task = asyncio.current_task()
    assert task is not None  # this coroutine runs in one
    stop = asyncio.get_running_loop().call_soon_threadsafe
    with call.token.on_cancellation_requested(lambda: stop(task.cancel)):
        value = step.run(arguments, call)
        return await value if inspect.isawaitable(value) else value


def main() -> None:
    """Serve as a worker until the server goes away."""
    pipes = ToolWorkerPipes()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the real one still
    os.environ.pop("PYTHONPATH", None)  # it is meant for this process, not for those that tools start
    first = pipes.read()
    setup = frames.decode_request(first) if first is not None else None
    if not isinstance(setup, frames.ToolWorkerLimitsFrame):
        return
    # Programs whose parent has ended become children of this process, so that they can be found and killed.
    adopt_orphans()
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, setup.memory)):
        with suppress(ValueError, OSError):  # the system has a lower limit already, or none of this kind
            resource.setrlimit(kind, (limit, limit))
    worker = ToolWorkerLoop(pipes, setup)
    threading.Thread(target=worker.listen, name="toolgate-listener", daemon=True).start()
    worker.serve()


if __name__ == "__main__":
    main()
