"""The engine's process as the gateway sees it: started, asked, cancelled, ended.

Knows nothing of prompts or of whether the process ought to be started again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

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

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._generations: dict[int, Generation] = {}
        self._count = 0
        self._words = bytearray()
        self.lives = True
        self._loaded: asyncio.Future[frames.Ready] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen())
        self._overhearing = asyncio.create_task(self._overhear())

    @classmethod
    async def start(cls, order: frames.Load) -> "EngineProcess":
        """A process that has loaded the weights; EngineFault if it cannot."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(os.environ),
                start_new_session=True,  # a Ctrl-C is for the gateway, which ends us in order
            )
        except OSError as error:
            raise EngineFault(f"No process could be started for the model: {error.strerror}.") from error
        engine = cls(process)
        try:
            engine._send(order)
            await engine._loaded
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
        self._loaded.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait({self._listening}, timeout=_END_SECONDS)
        self._kill()
        await asyncio.wait({self._listening, self._overhearing})

    def _send(self, order: frames.Order) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(frames.encode(order))

    async def _listen(self) -> None:
        """Hand out what the engine says; when it ends, everybody who waits is told how."""
        assert self._process.stdout is not None  # it was asked for
        try:
            while True:
                body = await next_framed(self._process.stdout.readexactly, frames.LONGEST)
                self._hear(frames.decode_report(body))
        except (asyncio.IncompleteReadError, Overlong, msgspec.DecodeError, ConnectionError, RecursionError):
            pass
        self.lives = False
        await self._gone()
        fault = EngineFault(self._ending())
        if not self._loaded.done():
            self._loaded.set_exception(fault)
        for generation in self._generations.values():
            generation.hear(fault)
        self._generations.clear()

    async def _gone(self) -> None:
        """It has closed its end, or speaks nonsense: wait for it to end, but not for long."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
            await self._process.wait()

    def _kill(self) -> None:
        # Not `Process.kill`: it would take the exit status away from the event loop, which then cannot tell it.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

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

    async def _overhear(self) -> None:
        """Keep the last of what the runtime prints: it tells why it fell."""
        assert self._process.stderr is not None  # it was asked for
        while chunk := await self._process.stderr.read(_LAST_WORDS):
            self._words += chunk
            del self._words[:-_LAST_WORDS]

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"The model's engine ended with status {code}.{self._said()}"
        number = signal.Signals(-code)
        return f"The model's engine was ended by {number.name}.{_WHY.get(number, '')}"

    def _said(self) -> str:
        lines = self._words.decode("utf-8", "replace").strip().splitlines()
        return f" It last said: {lines[-1][:300]}" if lines else ""


def _environment(everything: Mapping[str, str]) -> dict[str, str]:
    """What the engine sees: enough to start, and none of our secrets."""
    seen = {name: everything[name] for name in _SEEN if name in everything}
    return {**seen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
