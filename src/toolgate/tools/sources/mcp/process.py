"""An MCP server as a child process: one JSON message a line on its pipes.

It leads a process group of its own, and the whole group ends with it. What it writes to stderr is read and forgotten but
for the end; what it writes to stdout and is no message is counted, and too much of it ends the connection.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from toolgate.conversation.errors import Garbled
from toolgate.tools.sources.mcp.line import Hear, Lost, Refused
from toolgate.tools.sources.mcp.messages import INTERNAL_ERROR, Failure, Message, Notice, Request, Success, read
from toolgate.tools.sources.mcp.pieces import LONGEST_LINE, Lines, Measure, Overlong, Tail, printable
from toolgate.tools.sources.mcp.servers import Stdio

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NEVER_CANCELLED = ("initialize", "server/discover")
_MOST_UNREAD = 16 * 1024 * 1024
_MOST_GARBAGE = 1000
_FULL_CHUNK = 64 * 1024
_ID_FIRST = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*,')
_ID_LAST = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class ProcessLine:
    """A running program; `aclose` leaves no process, pipe or timer behind."""

    def __init__(self, server: Stdio, grace: float = 1.0) -> None:
        self._server = server
        self._grace = grace
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._pipes: _Pipes | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._ending = False

    async def open(self, hear: Hear) -> None:
        """Start the program; Lost says why it does not start."""
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[Lost] = loop.create_future()
        self._hear = hear
        pipes = self._pipes = _Pipes(self)
        try:
            self._transport, _ = await loop.subprocess_exec(
                lambda: pipes,
                *self._server.command,
                env=environment(self._server.env),
                cwd=self._server.cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else str(failure)
            raise Lost(f"could not be started: {self._server.command[0]}: {reason}") from None

    def agree(self, version: str | None) -> None:
        """Nothing changes on a pipe."""

    async def ask(self, request: Request, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """The result, or Trouble."""
        id = cast(int, request.id)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            self._write(request.encode())
            return await answer
        except asyncio.CancelledError:
            if request.method not in _NEVER_CANCELLED and not self.lost.done():
                with suppress(Lost):
                    self._write(Notice("notifications/cancelled", {"requestId": id}).encode())
            raise
        finally:
            del self._waiting[id]

    async def say(self, message: bytes) -> None:
        """Write a line; a loss shows in `lost`."""
        with suppress(Lost):
            self._write(message)

    async def attend(self) -> None:
        """Everything comes over the one pipe that is read anyway."""
        await asyncio.Future()

    async def aclose(self) -> None:
        """Close its input, which asks it to end; then end it, children and all."""
        transport, pipes = self._transport, self._pipes
        if transport is None or pipes is None:
            return
        try:
            if not self.lost.done():  # otherwise all of it was killed on the spot
                await self._end(transport, pipes)
        finally:
            transport.close()
        await pipes.closed_within(self._grace)

    async def _end(self, transport: asyncio.SubprocessTransport, pipes: "_Pipes") -> None:
        self._ending = True
        self.lose("was closed")
        try:
            if (stdin := transport.get_pipe_transport(0)) is not None:
                stdin.close()
            await pipes.gone_within(self._grace)
            _signal_group(transport.get_pid(), signal.SIGTERM)
            await pipes.gone_within(self._grace)
        finally:
            _signal_group(transport.get_pid(), signal.SIGKILL)

    def heard(self, message: Message) -> None:
        """Give an answer to whoever waits for it; an answer that nobody waits for is late or forged, and dropped."""
        match message:
            case Request() | Notice():
                self._hear(message)
            case Success(id, result):
                if (waiting := self._whose(id)) is not None:
                    waiting.set_result(result)
            case Failure(id, code, words, details):
                if (waiting := self._whose(id)) is not None:
                    waiting.set_exception(Refused(words, code, details))

    def lose(self, words: str) -> None:
        """The connection is gone: whoever waits learns it now."""
        if self.lost.done():
            return
        self.lost.set_result(Lost(words))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Lost(words))
        if self._transport is not None and not self._ending:
            _signal_group(self._transport.get_pid(), signal.SIGKILL)

    def _whose(self, id: int | str | None) -> "asyncio.Future[Mapping[str, Any]] | None":
        waiting = self._waiting.get(id) if type(id) is int else None
        return None if waiting is None or waiting.done() else waiting

    def _write(self, message: bytes) -> None:
        if self.lost.done():
            raise Lost(str(self.lost.result()))
        stdin = cast(asyncio.WriteTransport, cast(asyncio.SubprocessTransport, self._transport).get_pipe_transport(0))
        if stdin.get_write_buffer_size() > _MOST_UNREAD:
            self.lose("does not read what it is sent")
            raise Lost("does not read what it is sent")
        stdin.write(message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


class _Pipes(asyncio.SubprocessProtocol):
    """What the event loop tells of the child."""

    def __init__(self, line: ProcessLine) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._line = line
        self._lines = Lines()
        self._measure = Measure(loop.time)
        self._errors = Tail()
        self._garbage = 0
        self._exited: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._errors.feed(data)
            if len(data) >= _FULL_CHUNK:  # a flood: let others have their turn
                self._pause(fd, 0.002)
            return
        heard = 0
        for line in self._lines.feed(data):
            heard += self._read(line)
        if self._garbage > _MOST_GARBAGE:
            self._line.lose("writes to its output what is no JSON-RPC: more than a thousand lines of it")
        if (seconds := self._measure.pause(heard)) > 0:
            self._pause(fd, seconds)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and self._transport.get_returncode() is None:
            # Mostly the process has ended and the event loop tells us next, with the reason.
            self._timers[-1] = self._loop.call_later(0.1, self._line.lose, self._told("closed its output"))

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
        code = self._transport.get_returncode() or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self._line.lose(self._told(how))

    def connection_lost(self, exc: Exception | None) -> None:
        for handle in self._timers.values():
            handle.cancel()
        if not self._closed.done():
            self._closed.set_result(None)

    async def gone_within(self, seconds: float) -> None:
        """Wait for the process to end, but not longer."""
        await asyncio.wait([self._exited], timeout=seconds)

    async def closed_within(self, seconds: float) -> None:
        """Wait until nothing is left of it, but not longer."""
        await asyncio.wait([self._exited], timeout=seconds)
        await asyncio.wait([self._closed], timeout=seconds)

    def _read(self, line: bytes | Overlong) -> int:
        messages = [_too_much(line)] if isinstance(line, Overlong) else _messages(line)
        self._garbage += not messages or isinstance(line, Overlong)
        for message in messages:
            self._line.heard(message)
        return max(1, len(messages))

    def _told(self, what: str) -> str:
        said = printable(str(self._errors))
        garbage = f", after {self._garbage} lines that were no JSON-RPC" if self._garbage else ""
        return f"{what}{garbage}" + (f"; it said: {said}" if said else "")

    def _pause(self, fd: int, seconds: float) -> None:
        pipe = cast(asyncio.ReadTransport | None, self._transport.get_pipe_transport(fd))
        if pipe is not None and fd not in self._timers:
            pipe.pause_reading()
            self._timers[fd] = self._loop.call_later(seconds, self._resume, fd)

    def _resume(self, fd: int) -> None:
        del self._timers[fd]
        pipe = cast(asyncio.ReadTransport | None, self._transport.get_pipe_transport(fd))
        if pipe is not None and not pipe.is_closing():
            pipe.resume_reading()


def _messages(line: bytes) -> list[Message]:
    try:
        return read(line)
    except Garbled:
        return []


def _too_much(line: Overlong) -> Message:
    """What to tell whoever waits for an answer that is too long: its id stands at one of its ends, if it is one."""
    found = _ID_FIRST.match(line.head) or _ID_LAST.search(line.tail)
    words = f"the answer is larger than {LONGEST_LINE // 1024**2} MiB"
    return Failure(int(found.group(1)) if found else None, INTERNAL_ERROR, words)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables a child sees: what any program needs, and what its configuration gives it."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(given)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
