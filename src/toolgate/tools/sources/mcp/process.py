"""An MCP server as a child process: one JSON message a line on its pipes.

It leads a process group of its own, and the whole group ends with it. What it writes to stderr is read and forgotten but
for the end; what it writes to stdout and is no message is counted, and too much of it ends the connection.
"""

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from subprocess import PIPE
from typing import Any, cast

from toolgate.conversation.errors import Garbled, InvalidRequest
from toolgate.processes.child import ChildProcess, PipeWriter
from toolgate.tools.sources.mcp.line import Hear, Lost, Refused
from toolgate.tools.sources.mcp.messages import INTERNAL_ERROR, Failure, Message, Notice, Request, Success, read
from toolgate.tools.sources.mcp.pieces import A_STEP, ENDS, LARGE, TOO_LARGE, Lines, Measure, Overlong, Tail, printable
from toolgate.tools.sources.mcp.servers import Stdio

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NEVER_CANCELLED = ("initialize", "server/discover")
_MOST_UNREAD = 16 * 1024 * 1024
_MOST_GARBAGE = 1000
_FULL_CHUNK = 64 * 1024
_EXIT_SECONDS = 0.1
_ID_FIRST = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*,')
_ID_LAST = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class ProcessLine:
    """A running program; `aclose` leaves no process, pipe or timer behind."""

    def __init__(self, server: Stdio, grace: float = 1.0) -> None:
        self._server = server
        self._grace = grace
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._process: ChildProcess | None = None
        self._ending = False

    async def open(self, hear: Hear) -> None:
        """Start the program; Lost says why it does not start."""
        self.lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self._hear = hear
        errors = _Errors()
        output = _Output(self, errors)
        try:
            self._process = ChildProcess(
                self._server.command,
                stdin=PIPE,
                stdout=output,
                stderr=errors,
                env=environment(self._server.env),
                cwd=self._server.cwd,
            )
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else str(failure)
            raise Lost(f"could not be started: {self._server.command[0]}: {reason}") from None
        self._watching = asyncio.create_task(self._watch(self._process, output))

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
        process = self._process
        if process is None:
            return
        try:
            if not self.lost.done():  # otherwise all of it was killed on the spot
                await self._end(process)
        finally:
            process.close()
        await process.aclose()
        await asyncio.wait({self._watching})

    async def _end(self, process: ChildProcess) -> None:
        self._ending = True
        self.lose("was closed")
        if process.stdin is not None:
            process.stdin.close()
        await process.wait(self._grace)
        process.signal_group(signal.SIGTERM)
        await process.wait(self._grace)

    async def _watch(self, process: ChildProcess, output: "_Output") -> None:
        """Lose the connection when the output ends, which mostly means that the process has."""
        await asyncio.wait({output.ended})
        code = await process.wait(_EXIT_SECONDS)
        if code is None:
            how = "closed its output"
        else:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self.lose(output.told(how))

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
        if self._process is not None and not self._ending:
            self._process.kill()

    def _whose(self, id: int | str | None) -> "asyncio.Future[Mapping[str, Any]] | None":
        waiting = self._waiting.get(id) if type(id) is int else None
        return None if waiting is None or waiting.done() else waiting

    def _write(self, message: bytes) -> None:
        if self.lost.done():
            raise Lost(str(self.lost.result()))
        stdin = cast(PipeWriter, cast(ChildProcess, self._process).stdin)
        if stdin.buffered > _MOST_UNREAD:
            self.lose("does not read what it is sent")
            raise Lost("does not read what it is sent")
        stdin.write(message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


class _Stream(asyncio.Protocol):
    """One of the pipes that the child writes to; reading it can be put off."""

    _paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def _pause(self, seconds: float) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._rest()

    def _rest(self) -> None:
        """There is nothing to wait for: go on reading."""
        self._transport.resume_reading()


class _Errors(_Stream):
    """The end of what the child writes to stderr."""

    def __init__(self) -> None:
        self.tail = Tail()

    def data_received(self, data: bytes) -> None:
        self.tail.feed(data)
        if len(data) >= _FULL_CHUNK:  # a flood: let others have their turn
            self._pause(0.002)


class _Output(_Stream):
    """Messages that the child writes to stdout; `ended` is done when there will be no more.

    Lines are dealt with in order and a few at a time; while some are left, or a large one is decoded in a thread, the
    pipe is not read.
    """

    def __init__(self, line: ProcessLine, errors: _Errors) -> None:
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._lines = Lines()
        self._measure = Measure(self._loop.time)
        self._errors = errors
        self._garbage = 0
        self._left: deque[bytes | Overlong | Message] = deque()
        self._at_work = self._closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def data_received(self, data: bytes) -> None:
        lines = self._lines.feed(data)
        self._left += lines
        if (seconds := self._measure.pause(len(lines), len(data))) > 0:
            self._pause(seconds)
        if not self._at_work:
            self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._rest()

    def told(self, what: str) -> str:
        """What happened, with the child's own words."""
        said = printable(str(self._errors.tail))
        garbage = f", after {self._garbage} lines that were no JSON-RPC" if self._garbage else ""
        return f"{what}{garbage}" + (f"; it said: {said}" if said else "")

    def _work(self) -> None:
        """Deal with as much as one step of the loop may."""
        self._at_work, size = False, 0
        for _ in range(A_STEP):
            if not self._left or size > LARGE:
                break
            item = self._left.popleft()
            if isinstance(item, bytes) and len(item) > LARGE:
                self._wait_for(item)
                return
            size += len(item) if isinstance(item, bytes) else 0
            self._take(item)
        if self._garbage > _MOST_GARBAGE:
            self._line.lose("writes to its output what is no JSON-RPC: more than a thousand lines of it")
        if self._left:
            self._at_work = True
            self._transport.pause_reading()
            self._loop.call_soon(self._work)
        else:
            self._rest()

    def _wait_for(self, line: bytes) -> None:
        self._at_work = True
        self._transport.pause_reading()
        self._loop.run_in_executor(None, _messages, line).add_done_callback(self._decoded)

    def _decoded(self, found: "asyncio.Future[list[Message]]") -> None:
        self._add([] if found.cancelled() else found.result())
        self._work()

    def _rest(self) -> None:
        """There is nothing to do: go on reading, or say that there will be nothing any more."""
        if self._at_work:
            return
        if self._closed:
            if not self.ended.done():
                self.ended.set_result(None)
        elif not self._paused:
            self._transport.resume_reading()

    def _take(self, item: bytes | Overlong | Message) -> None:
        if isinstance(item, bytes):
            self._add(_messages(item))
        elif isinstance(item, Overlong):
            self._garbage += 1
            self._line.heard(_too_much(item))
        else:
            self._line.heard(item)

    def _add(self, found: list[Message]) -> None:
        """Have these dealt with next."""
        self._garbage += not found
        self._left.extendleft(reversed(found))


def _messages(line: bytes) -> list[Message]:
    try:
        return read(line)
    except Garbled:
        return []
    except InvalidRequest as error:
        return [_too_much(Overlong(line[:ENDS], line[-ENDS:]), error.message)]


def _too_much(line: Overlong, words: str = TOO_LARGE) -> Message:
    """What to tell whoever waits for an answer that is too long: its id stands at one of its ends, if it is one."""
    found = _ID_FIRST.match(line.head) or _ID_LAST.search(line.tail)
    return Failure(int(found.group(1)) if found else None, INTERNAL_ERROR, words)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables a child sees: what any program needs, and what its configuration gives it."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(given)
