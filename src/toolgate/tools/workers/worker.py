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
from contextlib import suppress

import msgspec
from msgspec import Struct

from toolgate.tools.tool import Progress, Tell, ToolFailure, in_silence
from toolgate.tools.workers import frames
from toolgate.tools.workers.tree import end_tree
from toolgate.wire.lengths import Overlong, next_framed

_ALWAYS = ("PATH", "HOME", "LANG", "TZ")
_CHUNK = 64 * 1024
_LOG_PAUSE = 0.005
_POLL = 0.01
_REAP_SECONDS = 5.0
_WHY = {
    "SIGKILL": " Perhaps the system ran out of memory.",
    "SIGXCPU": " It used more processor time than it may have.",
}


class Limits(Struct, frozen=True, kw_only=True):
    """What worker processes may have: how many, memory and output in bytes, seconds, and names of the environment.

    A call stands in `line` for so long before it is told that all are busy.
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
        self._log = log
        self._answers = asyncio.StreamReader()
        self._transports: list[asyncio.BaseTransport] = []
        self._questions: asyncio.WriteTransport | None = None
        self._tell: Tell = in_silence
        self._reading: asyncio.Task[frames.Answer] | None = None
        self._listening: asyncio.Task[None] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "toolgate.tools.workers.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(os.environ, limits.environment),
                start_new_session=True,
            )
        except OSError as error:
            raise ToolFailure(f"No process could be started for the tool: {error.strerror}.") from error
        self._pipes = [self._process.stdin, self._process.stdout, self._process.stderr]

    @property
    def pid(self) -> int:
        """The process's number, which is also its group's."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._ended() is None and not self._answers.at_eof()

    async def ask(self, question: frames.Question, tell: Tell) -> frames.Answer:
        """Its answer; ToolFailure says how the process ended or broke its word. Cancelling this does not stop it."""
        if self._questions is None:
            await self._connect()
        self._send(frames.encode(question))
        self._tell = tell
        self._reading = asyncio.create_task(self._answer())
        await asyncio.wait({self._reading})
        return self._reading.result()

    async def calm(self) -> bool:
        """Cancel what it is doing; whether it answered within its time of grace and can be asked again."""
        if self._reading is None:
            return False
        self._tell = in_silence  # whoever listened is gone
        self._send(frames.encode(frames.Cancel()))
        await asyncio.wait({self._reading}, timeout=self._limits.grace)
        return self._reading.done() and not self._reading.cancelled() and self._reading.exception() is None

    async def end(self) -> None:
        """Kill it and all that it started, and let go of everything."""
        self.kill()
        for task in (self._reading, self._listening):
            if task is not None and not task.done():
                task.cancel()
            if task is not None:
                await asyncio.wait({task})
                _ = task.cancelled() or task.exception()  # somebody has to look at it
        for transport in self._transports:
            transport.close()
        for pipe in filter(None, self._pipes):  # those that no transport owns yet
            pipe.close()
        await self._reap()

    def kill(self) -> None:
        """Kill it and all that it started; whoever waits for its answer learns of it."""
        end_tree(self.pid)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        words = asyncio.StreamReader()
        stdin, stdout, stderr = self._pipes
        self._pipes = [stdin, None, stderr]
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._answers), stdout)
        self._transports.append(transport)
        self._pipes = [stdin]
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), stderr)
        self._transports.append(transport)
        self._listening = asyncio.create_task(_listen(words, self._log))
        self._pipes = []
        self._questions, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, stdin)
        self._transports.append(self._questions)
        self._send(frames.encode(frames.Setup(self._limits.memory, self._limits.output, self._limits.cpu)))

    def _send(self, frame: bytes) -> None:
        if self._questions is not None and not self._questions.is_closing():
            self._questions.write(frame)

    async def _answer(self) -> frames.Answer:
        while True:
            try:
                body = await next_framed(self._answers.readexactly, frames.longest(self._limits.output))
                message = frames.decode_answer(body)
            except Overlong:
                words = f"The tool gave more than {self._limits.output:,} bytes of output and was ended."
                raise ToolFailure(words) from None
            except asyncio.IncompleteReadError:
                raise ToolFailure(await self._ending()) from None
            except (msgspec.DecodeError, RecursionError):
                raise ToolFailure("The tool's process wrote what is no answer and was ended.") from None
            if not isinstance(message, frames.Told):
                return message
            self._tell(Progress(message.message, message.done, message.total))

    async def _ending(self) -> str:
        """How the process came to its end, in words."""
        for _ in range(int(_REAP_SECONDS / _POLL)):
            if ended := self._ended():
                return _told(ended)
            await asyncio.sleep(_POLL)
        return "The tool's process closed its output and was ended."

    def _ended(self) -> os.waitid_result | None:
        """How it ended, leaving it unreaped: as long as it is, no other process gets its number."""
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None

    async def _reap(self) -> None:
        for _ in range(int(_REAP_SECONDS / _POLL)):
            if self._process.poll() is not None:
                return
            await asyncio.sleep(_POLL)


def environment(everything: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """What a worker sees of the environment: enough to find programs, and what the operator allows."""
    seen = {name: everything[name] for name in (*_ALWAYS, *allowed) if name in everything}
    return {**seen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _told(ended: os.waitid_result) -> str:
    if ended.si_code == os.CLD_EXITED:
        return f"The tool ended its process with status {ended.si_status}."
    name = signal.Signals(ended.si_status).name
    return f"The tool's process was ended by {name}.{_WHY.get(name, '')}"


async def _listen(words: asyncio.StreamReader, log: Log) -> None:
    """Take what tools print, at a pace: one that prints without end waits for us, not we for it."""
    while chunk := await words.read(_CHUNK):
        log.add(chunk)
        await asyncio.sleep(_LOG_PAUSE)
