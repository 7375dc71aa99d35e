"""Start the engine process, send it messages, cancel answers, and end it.

Knows nothing of prompts or of whether the process ought to be started again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from subprocess import PIPE
from typing import Protocol

import msgspec

from toolgate.processes.child import ChildProcess
from toolgate.upstreams.local import frames
from toolgate.wire.length_prefix import OverlongMessage, read_prefixed_async

_SEEN = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MODULE = "toolgate.upstreams.local.engine"
_END_SECONDS = 2.0
_LAST_WORDS = 4096
_WHY = {signal.SIGKILL: " Perhaps the machine ran out of memory."}


class EngineFault(Exception):
    """The engine could not be started, or ended; the text says how."""


class CancellableEngine(Protocol):
    """Generates text, and can cancel it."""

    def forget(self, id: int) -> None:
        """Cancel this answer."""


class EngineGeneration:
    """One answer of the engine."""

    def __init__(self, engine: CancellableEngine, id: int, over: Callable[[], None]) -> None:
        """`over` is called as soon as the engine is done with it, read or not."""
        self._when_over = over
        self._engine = engine
        self._messages: asyncio.Queue[frames.GenerationFrame | EngineFault] = (
            asyncio.Queue()
        )  # as long as an answer, which is bounded
        self._over = False
        self.id = id

    def receive(self, message: frames.GenerationFrame | EngineFault) -> None:
        """Take a message of the engine, or its end."""
        self._messages.put_nowait(message)
        if not isinstance(message, (frames.GeneratedTextFrame, frames.PromptProgressFrame)):
            self._when_over()

    async def __aiter__(self) -> AsyncIterator[frames.GenerationFrame]:
        """Yield the engine's messages, the last being `Over` or `Failed`; EngineFault if the engine ends before."""
        while not self._over:
            message = await self._messages.get()
            if isinstance(message, EngineFault):
                self._over = True
                raise message
            self._over = isinstance(message, (frames.GenerationEndFrame, frames.GenerationFailedFrame))
            yield message

    def cancel(self) -> None:
        """Stop the generation, unless it has ended."""
        if not self._over:
            self._over = True
            self._engine.forget(self.id)
            self._when_over()


class EngineProcess:
    """A process with loaded weights."""

    def __init__(self) -> None:
        """Start a process without weights; EngineFault if that fails."""
        self._reports = asyncio.StreamReader()
        self._errors = _Tail()
        self._generations: dict[int, EngineGeneration] = {}
        self._count = 0
        self.lives = True
        self._loaded: asyncio.Future[frames.EngineReadyFrame] = asyncio.get_running_loop().create_future()
        try:
            self._process = ChildProcess(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=PIPE,
                stdout=asyncio.StreamReaderProtocol(self._reports),
                stderr=self._errors,
                env=_environment(os.environ),
            )
        except OSError as error:
            raise EngineFault(f"No process could be started for the model: {error.strerror}.") from error
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, order: frames.LoadFrame) -> "EngineProcess":
        """Start a process and load the weights; EngineFault if that fails."""
        engine = cls()
        try:
            engine._send(order)
            await asyncio.wait({engine._loaded})
            engine._loaded.result()
        except BaseException:
            await engine.aclose()
            raise
        return engine

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def generate(self, order: frames.GenerateFrame, over: Callable[[], None] = lambda: None) -> EngineGeneration:
        """Start an answer to these messages; earlier ones are generated first."""
        self._count += 1
        generation = self._generations[self._count] = EngineGeneration(self, self._count, over)
        if not self.lives:
            generation.receive(EngineFault(self._ending()))
        else:
            self._send(msgspec.structs.replace(order, id=self._count))
        return generation

    def forget(self, id: int) -> None:
        """Cancel this answer."""
        if self._generations.pop(id, None) is not None:
            self._send(frames.CancelGenerationFrame(id))

    async def ended(self) -> str:
        """Wait for the process to end by itself, and return how it did."""
        await asyncio.wait({self._listening})
        return self._ending()

    async def aclose(self) -> None:
        """End the process and its children."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()  # which asks it to end
            await self._process.wait(_END_SECONDS)
        finally:
            self._process.close()
        await self._process.aclose()
        await asyncio.wait({self._listening})

    def _send(self, order: frames.Order) -> None:
        assert self._process.stdin is not None  # it was asked for
        self._process.stdin.write(frames.encode(order))

    async def _listen(self) -> None:
        """Pass on the engine's messages; when it ends, all open answers fail."""
        try:
            while True:
                body = await read_prefixed_async(self._reports.readexactly, frames.LONGEST)
                self._hear(frames.decode_report(body))
        except (asyncio.IncompleteReadError, OverlongMessage, msgspec.DecodeError, ConnectionError, RecursionError):
            pass
        self.lives = False
        await self._process.wait(_END_SECONDS)  # it has closed its output, or writes nonsense
        self._process.close()
        await self._process.aclose()
        fault = EngineFault(self._ending())
        if not self._loaded.done():
            self._loaded.set_exception(fault)
            self._loaded.exception()  # or the loop complains where nothing waits for it
        for generation in self._generations.values():
            generation.receive(fault)
        self._generations.clear()

    def _hear(self, report: frames.Report) -> None:
        match report:
            case frames.EngineReadyFrame() if not self._loaded.done():
                self._loaded.set_result(report)
            case frames.LoadRefusedFrame(message) if not self._loaded.done():
                self._loaded.set_exception(EngineFault(message))
            case frames.GenerationEndFrame(id) | frames.GenerationFailedFrame(id):
                if generation := self._generations.pop(id, None):
                    generation.receive(report)
            case frames.GeneratedTextFrame(id) | frames.PromptProgressFrame(id):
                if generation := self._generations.get(id):
                    generation.receive(report)

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"The model's engine ended with status {code}.{self._errors.last_line()}"
        number = signal.Signals(-code)
        return f"The model's engine was ended by {number.name}.{_WHY.get(number, '')}"


class _Tail(asyncio.Protocol):
    """The last lines that the runtime printed, which say why it failed."""

    def __init__(self) -> None:
        self._last = bytearray()

    def data_received(self, data: bytes) -> None:
        self._last += data
        del self._last[:-_LAST_WORDS]

    def last_line(self) -> str:
        """The last line, as a sentence."""
        lines = self._last.decode("utf-8", "replace").strip().splitlines()
        return f" It last said: {lines[-1][:300]}" if lines else ""


def _environment(everything: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the engine, without our secrets."""
    seen = {name: everything[name] for name in _SEEN if name in everything}
    return {**seen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
