"""The engine's process as the gateway sees it: started, asked, cancelled, ended.

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
from toolgate.upstreams.embedded import frames
from toolgate.wire.lengths import Overlong, next_framed

_SEEN = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MODULE = "toolgate.upstreams.embedded.engine"
_END_SECONDS = 2.0
_LAST_WORDS = 4096
_WHY = {signal.SIGKILL: " Perhaps the machine ran out of memory."}


class EngineFault(Exception):
    """The engine could not be started, or ended; the text says how."""


class Forgetful(Protocol):
    """Something that writes, and stops when nobody listens."""

    def forget(self, id: int) -> None:
        """Nobody listens to this answer any more."""


class Generation:
    """One answer of the engine, told until it is over."""

    def __init__(self, engine: Forgetful, id: int, over: Callable[[], None]) -> None:
        """`over` is called as soon as the engine has no more to do for it, whether anybody listens or not."""
        self._when_over = over
        self._engine = engine
        self._told: asyncio.Queue[frames.Told | EngineFault] = asyncio.Queue()  # as long as an answer, which is bounded
        self._over = False
        self.id = id

    def hear(self, told: frames.Told | EngineFault) -> None:
        """Take in what the engine said, or that it ended."""
        self._told.put_nowait(told)
        if not isinstance(told, (frames.Said, frames.Reading)):
            self._when_over()

    async def __aiter__(self) -> AsyncIterator[frames.Told]:
        """What the engine says, the last being `Over` or `Failed`; EngineFault if it ends before."""
        while not self._over:
            told = await self._told.get()
            if isinstance(told, EngineFault):
                self._over = True
                raise told
            self._over = isinstance(told, (frames.Over, frames.Failed))
            yield told

    def cancel(self) -> None:
        """Have the engine stop, unless it has."""
        if not self._over:
            self._over = True
            self._engine.forget(self.id)
            self._when_over()


class EngineProcess:
    """A process with loaded weights."""

    def __init__(self) -> None:
        """Start a process that has loaded nothing yet; EngineFault if there can be none."""
        self._reports = asyncio.StreamReader()
        self._errors = _Tail()
        self._generations: dict[int, Generation] = {}
        self._count = 0
        self.lives = True
        self._loaded: asyncio.Future[frames.Ready] = asyncio.get_running_loop().create_future()
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
    async def start(cls, order: frames.Load) -> "EngineProcess":
        """A process that has loaded the weights; EngineFault if it cannot."""
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
        """The process's number."""
        return self._process.pid

    def generate(self, order: frames.Generate, over: Callable[[], None] = lambda: None) -> Generation:
        """An answer to these messages; those asked before are answered first."""
        self._count += 1
        generation = self._generations[self._count] = Generation(self, self._count, over)
        if not self.lives:
            generation.hear(EngineFault(self._ending()))
        else:
            self._send(msgspec.structs.replace(order, id=self._count))
        return generation

    def forget(self, id: int) -> None:
        """Nobody listens to this answer any more."""
        if self._generations.pop(id, None) is not None:
            self._send(frames.Cancel(id))

    async def ended(self) -> str:
        """Wait for the process to end by itself, and tell how it did."""
        await asyncio.wait({self._listening})
        return self._ending()

    async def aclose(self) -> None:
        """End the process and leave nothing of it behind."""
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
        """Hand out what the engine says; when it ends, everybody who waits is told how."""
        try:
            while True:
                body = await next_framed(self._reports.readexactly, frames.LONGEST)
                self._hear(frames.decode_report(body))
        except (asyncio.IncompleteReadError, Overlong, msgspec.DecodeError, ConnectionError, RecursionError):
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
            generation.hear(fault)
        self._generations.clear()

    def _hear(self, report: frames.Report) -> None:
        match report:
            case frames.Ready() if not self._loaded.done():
                self._loaded.set_result(report)
            case frames.Refused(message) if not self._loaded.done():
                self._loaded.set_exception(EngineFault(message))
            case frames.Over(id) | frames.Failed(id):
                if generation := self._generations.pop(id, None):
                    generation.hear(report)
            case frames.Said(id) | frames.Reading(id):
                if generation := self._generations.get(id):
                    generation.hear(report)

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"The model's engine ended with status {code}.{self._errors.said()}"
        number = signal.Signals(-code)
        return f"The model's engine was ended by {number.name}.{_WHY.get(number, '')}"


class _Tail(asyncio.Protocol):
    """The last of what the runtime prints: it tells why it fell."""

    def __init__(self) -> None:
        self._last = bytearray()

    def data_received(self, data: bytes) -> None:
        self._last += data
        del self._last[:-_LAST_WORDS]

    def said(self) -> str:
        """Its last line, as a sentence."""
        lines = self._last.decode("utf-8", "replace").strip().splitlines()
        return f" It last said: {lines[-1][:300]}" if lines else ""


def _environment(everything: Mapping[str, str]) -> dict[str, str]:
    """What the engine sees: enough to start, and none of our secrets."""
    seen = {name: everything[name] for name in _SEEN if name in everything}
    return {**seen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
