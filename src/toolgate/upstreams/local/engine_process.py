"""Start the engine process, send it messages, cancel answers, and end it.

Knows nothing of prompts; `engine_supervisor.py` decides whether the process is started again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from subprocess import PIPE
from typing import Protocol

import msgspec

from toolgate.processes.child import ChildProcess, signal_name
from toolgate.upstreams.local import frames
from toolgate.wire.length_prefix import OverlongMessage, read_prefixed_async

# What the runtime and its libraries read.
_PASSED_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MODULE = "toolgate.upstreams.local.engine"
_END_SECONDS = 2.0
_TAIL_BYTES = 4096  # of its standard error, to which the runtime may print without end
_SIGNAL_HINTS: dict[int, str] = {signal.SIGKILL: " Perhaps the machine ran out of memory."}


class EngineFault(Exception):
    """The engine could not be started, or ended; the text is the reason."""


class CancellableEngine(Protocol):
    """Generates text, and can cancel it."""

    def cancel(self, id: int) -> None:
        """Cancel this answer."""


class EngineGeneration:
    """One answer of the engine."""

    def __init__(self, engine: CancellableEngine, id: int, over: Callable[[], None]) -> None:
        """`over` is called as soon as the engine is done with it, read or not."""
        self._on_end = over
        self._engine = engine
        # The queue holds one answer at most, whose tokens are limited.
        self._messages: asyncio.Queue[frames.GenerationFrame | EngineFault] = asyncio.Queue()
        self._over = False
        self.id = id

    def receive(self, message: frames.GenerationFrame | EngineFault) -> None:
        """Take a message of the engine, or its end."""
        self._messages.put_nowait(message)
        if not isinstance(message, (frames.EngineTextFrame, frames.EnginePromptProgressFrame)):
            self._on_end()

    async def __aiter__(self) -> AsyncIterator[frames.GenerationFrame]:
        """Yield the engine's messages up to its end or failure frame; EngineFault if the engine ends before."""
        while not self._over:
            message = await self._messages.get()
            if isinstance(message, EngineFault):
                self._over = True
                raise message
            self._over = isinstance(message, (frames.EngineGenerationEndFrame, frames.EngineGenerationFailedFrame))
            yield message

    def cancel(self) -> None:
        """Stop the generation, unless it has ended."""
        if not self._over:
            self._over = True
            self._engine.cancel(self.id)
            self._on_end()


class EngineProcess:
    """A process with loaded weights."""

    def __init__(self) -> None:
        """Start a process without weights; EngineFault if that fails."""
        self._reports = asyncio.StreamReader()
        self._errors = _Tail()
        self._generations: dict[int, EngineGeneration] = {}
        self._count = 0
        self.alive = True
        self._loaded: asyncio.Future[frames.EngineReadyFrame] = asyncio.get_running_loop().create_future()
        passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}  # none of our secrets
        try:
            self._process = ChildProcess(
                # -P: a module in the working directory must not stand in for one of ours.
                [sys.executable, "-P", "-m", _MODULE],
                stdin=PIPE,
                stdout=asyncio.StreamReaderProtocol(self._reports),
                stderr=self._errors,
                env={**passed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            raise EngineFault(f"No process could be started for the model: {error.strerror}.") from error
        self._receiving = asyncio.create_task(self._receive_all())

    @classmethod
    async def start(cls, order: frames.EngineLoadFrame) -> "EngineProcess":
        """Start a process and load the weights; EngineFault if that fails."""
        engine = cls()
        try:
            engine._send(order)
            await asyncio.wait({engine._loaded})  # which, unlike `await`, does not cancel the future with this task
            engine._loaded.result()
        except BaseException:
            await engine.aclose()
            raise
        return engine

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def generate(self, order: frames.EngineGenerateFrame, over: Callable[[], None] = lambda: None) -> EngineGeneration:
        """Start an answer to these messages; earlier ones are generated first."""
        self._count += 1
        generation = self._generations[self._count] = EngineGeneration(self, self._count, over)
        if not self.alive:
            generation.receive(EngineFault(self._ending()))
        else:
            self._send(msgspec.structs.replace(order, id=self._count))
        return generation

    def cancel(self, id: int) -> None:
        """Cancel this answer."""
        # One that is no longer here has ended: the engine knows nothing of it any more.
        if self._generations.pop(id, None) is not None:
            self._send(frames.EngineCancelFrame(id))

    async def ended(self) -> str:
        """Wait for the process to end by itself, and return how it did."""
        await asyncio.wait({self._receiving})
        return self._ending()

    async def aclose(self) -> None:
        """End the process and its children."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()  # the engine ends at the end of its input
            await self._process.wait(_END_SECONDS)
        finally:
            self._process.close()
        await self._process.aclose()
        await asyncio.wait({self._receiving})

    def _send(self, order: frames.Order) -> None:
        assert self._process.stdin is not None  # it is a pipe
        self._process.stdin.write(frames.encode(order))

    async def _receive_all(self) -> None:
        """Pass on the engine's messages; when it ends, all open answers fail."""
        try:
            while True:
                body = await read_prefixed_async(self._reports.readexactly, frames.LONGEST)
                self._receive(frames.decode_report(body))
        except (asyncio.IncompleteReadError, OverlongMessage, msgspec.DecodeError, ConnectionError, RecursionError):
            pass
        self.alive = False
        await self._process.wait(_END_SECONDS)  # it has closed its output, or writes nonsense
        self._process.close()
        await self._process.aclose()
        fault = EngineFault(self._ending())
        if not self._loaded.done():
            self._loaded.set_exception(fault)
            self._loaded.exception()  # retrieved, or asyncio would log it as never retrieved
        for generation in self._generations.values():
            generation.receive(fault)
        self._generations.clear()

    def _receive(self, report: frames.Report) -> None:
        match report:
            case frames.EngineReadyFrame() if not self._loaded.done():
                self._loaded.set_result(report)
            case frames.EngineLoadRefusedFrame(message) if not self._loaded.done():
                self._loaded.set_exception(EngineFault(message))
            case frames.EngineGenerationEndFrame(id) | frames.EngineGenerationFailedFrame(id):
                if generation := self._generations.pop(id, None):
                    generation.receive(report)
            case frames.EngineTextFrame(id) | frames.EnginePromptProgressFrame(id):
                if generation := self._generations.get(id):
                    generation.receive(report)

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"The model's engine ended with status {code}.{self._errors.last_line()}"
        return f"The model's engine was ended by {signal_name(-code)}.{_SIGNAL_HINTS.get(-code, '')}"


class _Tail(asyncio.Protocol):
    """The last lines that the runtime printed, in which it gives the reason of a failure."""

    def __init__(self) -> None:
        self._last = bytearray()

    def data_received(self, data: bytes) -> None:
        self._last += data
        del self._last[:-_TAIL_BYTES]

    def last_line(self) -> str:
        """The last line, as a sentence."""
        lines = self._last.decode("utf-8", "replace").strip().splitlines()
        return f" It last said: {lines[-1][:300]}" if lines else ""
