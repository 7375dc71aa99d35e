"""One worker process as the server sees it: started, asked, cancelled, ended with all that it started.

The process leads a group of its own, sees only the environment it is given and is killed rather than trusted.
Knows nothing of queues or of other workers.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Struct

from toolgate.processes.child import ChildProcess
from toolgate.tools.tool import Progress, Tell, ToolFailure, in_silence
from toolgate.tools.workers import frames
from toolgate.wire.lengths import Overlong, next_framed

_ALWAYS = ("PATH", "HOME", "LANG", "TZ")
_CHUNK = 64 * 1024
_LOG_PAUSE = 0.005
_EXIT_SECONDS = 5.0
_WHY = {
    "SIGKILL": " Perhaps the system ran out of memory.",
    "SIGXCPU": " It used more processor time than it may have.",
}


class Limits(Struct, frozen=True, kw_only=True):
    """What worker processes may have: how many, memory and output in bytes, seconds, and names of the environment.

    A call stands in `line` for so long before it is told that all are busy. One worker more than `workers` may run, for a
    caller who has none while another has them all.
    `cpu` is the processor time of one call: if the server dies, it ends even code that no longer listens to anybody.
    """

    workers: int = 4
    memory: int = 1024 * 1024 * 1024
    output: int = 8 * 1024 * 1024
    cpu: int = 600
    idle: float = 60.0
    line: float = 60.0
    grace: float = 0.5
    environment: tuple[str, ...] = ()


class Log:
    """The last words of the tools: what they printed, the oldest forgotten."""

    def __init__(self, size: int = _CHUNK) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = size
        self._held = 0

    def add(self, chunk: bytes) -> None:
        """Keep it."""
        self._chunks.append(chunk[-self._size :])
        self._held += len(self._chunks[-1])
        while self._held - len(self._chunks[0]) >= self._size:
            self._held -= len(self._chunks.popleft())

    @property
    def text(self) -> str:
        """All that is remembered."""
        return b"".join(self._chunks)[-self._size :].decode("utf-8", "replace")


class Worker:
    """A process that answers one question at a time."""

    def __init__(self, limits: Limits, log: Log) -> None:
        """Start the process; ToolFailure if the system has none to give."""
        self._limits = limits
        self._answers = asyncio.StreamReader()
        self._tell: Tell = in_silence
        self._reading: asyncio.Task[frames.Answer] | None = None
        try:
            self._process = ChildProcess(
                [sys.executable, "-P", "-m", "toolgate.tools.workers.child"],
                stdin=subprocess.PIPE,
                stdout=asyncio.StreamReaderProtocol(self._answers),
                stderr=_LogReader(log),
                env=environment(os.environ, limits.environment),
            )
        except OSError as error:
            raise ToolFailure(f"No process could be started for the tool: {error.strerror}.") from error
        self._send(frames.Setup(limits.memory, limits.output, limits.cpu))

    @property
    def lives(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._process.returncode is None and not self._answers.at_eof()

    async def ask(self, question: frames.Question, tell: Tell) -> frames.Answer:
        """Its answer; ToolFailure says how the process ended or broke its word. Cancelling this does not stop it."""
        self._send(question)
        self._tell = tell
        self._reading = asyncio.create_task(self._answer())
        await asyncio.wait({self._reading})
        return self._reading.result()

    async def calm(self) -> bool:
        """Cancel what it is doing; whether it answered within its time of grace and can be asked again."""
        if self._reading is None:
            return False
        self._tell = in_silence  # whoever listened is gone
        self._send(frames.Cancel())
        await asyncio.wait({self._reading}, timeout=self._limits.grace)
        return self._reading.done() and not self._reading.cancelled() and self._reading.exception() is None

    async def end(self) -> None:
        """Kill it and all that it started, at once, and wait until it is gone."""
        self._process.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            _ = self._reading.cancelled() or self._reading.exception()  # or the loop would log it
        await self._process.aclose()

    def kill(self) -> None:
        """Kill it and all that it started; a call that waits for its answer fails."""
        self._process.kill()

    def _send(self, message: frames.Setup | frames.Question | frames.Cancel) -> None:
        assert self._process.stdin is not None  # it was asked for
        self._process.stdin.write(frames.encode(message))

    async def _answer(self) -> frames.Answer:
        while True:
            try:
                body = await next_framed(self._answers.readexactly, frames.longest(self._limits.output))
                message = frames.decode_answer(body)
            except Overlong:
                words = f"The tool gave more than {self._limits.output:,} bytes of output and was ended."
                raise ToolFailure(words) from None
            except asyncio.IncompleteReadError:
                raise ToolFailure(_told(await self._process.wait(_EXIT_SECONDS))) from None
            except (msgspec.DecodeError, RecursionError):
                raise ToolFailure("The tool's process wrote what is no answer and was ended.") from None
            if not isinstance(message, frames.Told):
                return message
            self._tell(Progress(message.message, message.done, message.total))


class _LogReader(asyncio.Protocol):
    """Takes what tools print, at a pace: one that prints without end waits for us, not we for it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._log.add(data)
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(_LOG_PAUSE, self._transport.resume_reading)


def environment(everything: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """What a worker sees of the environment: enough to find programs, and what the operator allows."""
    seen = {name: everything[name] for name in (*_ALWAYS, *allowed) if name in everything}
    return {**seen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _told(code: int | None) -> str:
    """How the process came to its end, in words."""
    if code is None:
        return "The tool's process closed its output and was ended."
    if code >= 0:
        return f"The tool ended its process with status {code}."
    name = signal.Signals(-code).name
    return f"The tool's process was ended by {name}.{_WHY.get(name, '')}"
