"""One worker process as the server sees it: start it, send it requests, cancel them, end it with all that it started.

The process leads a group of its own, sees only the environment that it is given and is killed rather than trusted.
Knows nothing of queues or of other workers.
"""

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.processes.child import ChildProcess, signal_name
from toolgate.tools.tool import CallProgressUpdate, ReportProgress, ToolCallFailed, ignore_progress
from toolgate.tools.workers import frames
from toolgate.wire.jsontext import MAX_VALUES
from toolgate.wire.length_prefix import OverlongMessage, read_prefixed_async

# The server's environment holds its secrets: a worker gets these, and what the operator allows.
_ALWAYS_ALLOWED = ("PATH", "HOME", "LANG", "TZ")
_CHUNK = 64 * 1024
# Between two chunks of what tools print. Meanwhile the pipe fills up, and then the tool waits.
_LOG_PAUSE = 0.005
# A process that has closed its output should end by itself in this time, so that its status can be reported.
_EXIT_SECONDS = 5.0
_SIGNAL_HINTS = {
    "SIGKILL": " Perhaps the system ran out of memory.",
    "SIGXCPU": " It used more processor time than it may have.",
}


class WorkerLimits(Struct, frozen=True, kw_only=True):
    """The limits of worker processes: their number, memory and output in bytes, times in seconds, and the environment.

    A call waits `queue_seconds` for a free worker before it fails. One worker more than `workers` may run, for a caller
    who has none while another has them all.
    `cpu` is the processor time of one call: it ends code that ignores its cancellation even after the server has died.
    """

    workers: int = 4
    memory: int = 1024 * 1024 * 1024
    output: int = 8 * 1024 * 1024
    cpu: int = 600
    idle: float = 60.0
    queue_seconds: float = 60.0
    grace: float = 0.5
    environment: tuple[str, ...] = ()


class WorkerOutputTail:
    """The end of what tools printed."""

    def __init__(self, size: int = _CHUNK) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = size
        self._held = 0

    def add(self, chunk: bytes) -> None:
        """Append a chunk and drop the oldest ones."""
        self._chunks.append(chunk[-self._size :])
        self._held += len(self._chunks[-1])
        while self._held - len(self._chunks[0]) >= self._size:
            self._held -= len(self._chunks.popleft())

    @property
    def text(self) -> str:
        """The text that is kept."""
        return b"".join(self._chunks)[-self._size :].decode("utf-8", "replace")


class ToolWorker:
    """A process that answers one request at a time."""

    def __init__(self, limits: WorkerLimits, log: WorkerOutputTail) -> None:
        """Start the process; ToolCallFailed if the system cannot."""
        self._limits = limits
        self._responses = asyncio.StreamReader()
        self._report: ReportProgress = ignore_progress
        self._reading: asyncio.Task[frames.WorkerResponse] | None = None
        try:
            self._process = ChildProcess(
                # -P: a file in the current folder must not take the place of one of Python's modules.
                [sys.executable, "-P", "-m", "toolgate.tools.workers.worker_main"],
                stdin=subprocess.PIPE,
                stdout=asyncio.StreamReaderProtocol(self._responses),
                stderr=_LogReader(log),
                env=environment(os.environ, limits.environment),
            )
        except OSError as error:
            raise ToolCallFailed(f"No process could be started for the tool: {error.strerror}.") from error
        self._send(frames.ToolWorkerLimitsFrame(limits.memory, limits.output, limits.cpu))

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._process.returncode is None and not self._responses.at_eof()

    async def request(self, request: frames.WorkerRequest, report: ReportProgress) -> frames.WorkerResponse:
        """Send a request and read its response; ToolCallFailed if the process ends. `cancel` stops the request."""
        self._send(request)
        self._report = report
        # A task of its own, which outlives the call: `cancel` waits for the same response. `asyncio.wait` does not
        # cancel it when the call is cancelled.
        self._reading = asyncio.create_task(self._response())
        await asyncio.wait({self._reading})
        return self._reading.result()

    async def cancel(self) -> bool:
        """Cancel the request; whether the process responded within its time of grace and can be used again."""
        if self._reading is None:
            return False
        self._report = ignore_progress  # the call that received reports is gone
        self._send(frames.ToolWorkerCancelFrame())
        await asyncio.wait({self._reading}, timeout=self._limits.grace)
        return self._reading.done() and not self._reading.cancelled() and self._reading.exception() is None

    async def end(self) -> None:
        """Kill the process and all that it started, and wait until they are gone."""
        self._process.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            _ = self._reading.cancelled() or self._reading.exception()  # or the loop would log it
        await self._process.aclose()

    def kill(self) -> None:
        """Kill the process and all that it started; a call that waits for its response fails."""
        self._process.kill()

    def _send(
        self, message: frames.ToolWorkerLimitsFrame | frames.WorkerRequest | frames.ToolWorkerCancelFrame
    ) -> None:
        assert self._process.stdin is not None  # it was started with a pipe
        self._process.stdin.write(frames.encode(message))

    async def _response(self) -> frames.WorkerResponse:
        limit = self._limits.output
        while True:
            try:
                body = await read_prefixed_async(self._responses.readexactly, frames.max_length(limit))
                if len(body) <= LARGE_BODY:
                    message = frames.decode_response(body)
                else:
                    message = await run_in_thread(frames.decode_large_response, body)
            except OverlongMessage:
                raise ToolCallFailed(f"The tool gave more than {limit:,} bytes of output and was ended.") from None
            except asyncio.IncompleteReadError:
                raise ToolCallFailed(_exit_text(await self._process.wait(_EXIT_SECONDS))) from None
            except InvalidRequest:
                raise ToolCallFailed(f"The tool returned more than {MAX_VALUES:,} values.") from None
            except (msgspec.DecodeError, RecursionError):
                raise ToolCallFailed("The tool's process wrote a malformed response and was stopped.") from None
            if not isinstance(message, frames.ToolWorkerProgressFrame):
                return message
            self._report(CallProgressUpdate(message.message, message.done, message.total))


class _LogReader(asyncio.Protocol):
    """Logs what tools print, with pauses, so that a tool that prints without end waits for the server."""

    def __init__(self, log: WorkerOutputTail) -> None:
        self._log = log

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._log.add(data)
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(_LOG_PAUSE, self._transport.resume_reading)


def environment(ours: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Select the environment of a worker: enough to find programs, and what the operator allows."""
    selected = {name: ours[name] for name in (*_ALWAYS_ALLOWED, *allowed) if name in ours}
    return {**selected, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _exit_text(code: int | None) -> str:
    """Describe how the process ended."""
    if code is None:
        return "The tool's process closed its output and was ended."
    if code >= 0:
        return f"The tool ended its process with status {code}."
    name = signal_name(-code)
    return f"The tool's process was ended by {name}.{_SIGNAL_HINTS.get(name, '')}"
