"""Connect to an MCP server that runs as a child process: one JSON message per line on its pipes.

The child leads a process group of its own, and the whole group is ended with it. Of its stderr only the end is kept; lines
on stdout that are no messages are counted, and too many of them close the connection.
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

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.mcp.protocol.jsonrpc import (
    INTERNAL_ERROR,
    Message,
    Reply,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcResultResponse,
    decode_messages,
)
from toolgate.mcp.protocol.line_reader import (
    KEPT_ENDS,
    LARGE,
    MESSAGES_PER_STEP,
    TOO_LARGE,
    LineReader,
    McpReadRateLimit,
    TailBuffer,
    TruncatedLine,
    printable,
)
from toolgate.mcp.protocol.revisions import CANCELLED
from toolgate.mcp.protocol.server_config import StdioServerConfig
from toolgate.mcp.protocol.transport import McpConnectionLost, OnMessage, RemoteMcpError
from toolgate.processes.child import ChildProcess, PipeWriteTransport

# Any other variable may be a secret of ours, above all the keys of providers.
_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NEVER_CANCELLED = ("initialize", "server/discover")  # the protocol forbids to cancel the handshake
# Kept in our memory for a server that does not read its stdin.
_MAX_UNSENT_BYTES = 16 * 1024 * 1024
# Many servers print a banner or log lines to stdout; one that prints nothing else is no MCP server.
_MAX_INVALID_LINES = 1000
_FULL_CHUNK_BYTES = 64 * 1024
# A dying process closes its stdout a moment before its exit status can be read.
_EXIT_SECONDS = 0.1
# The id of a response at either end: `{"jsonrpc":"2.0","id":7,"result":…` and `…},"id":7,"jsonrpc":"2.0"}`.
_ID_FIRST = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*,')
_ID_LAST = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class StdioTransport:
    """A running child process; `aclose` leaves no process, pipe or timer behind."""

    def __init__(self, server: StdioServerConfig, grace: float = 1.0) -> None:
        self._server = server
        self._grace = grace
        self._pending: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._process: ChildProcess | None = None
        self._closing = False

    async def open(self, on_message: OnMessage) -> None:
        """Start the process; McpConnectionLost if it does not start."""
        self.lost: asyncio.Future[McpConnectionLost] = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        stderr = _Stderr()
        stdout = _Stdout(self, stderr)
        try:
            self._process = ChildProcess(
                self._server.command,
                stdin=PIPE,
                stdout=stdout,
                stderr=stderr,
                env=child_environment(self._server.env),
                cwd=self._server.cwd,
            )
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else str(failure)
            raise McpConnectionLost(f"could not be started: {self._server.command[0]}: {reason}") from None
        self._watching = asyncio.create_task(self._watch(self._process, stdout))

    def set_revision(self, revision: str | None) -> None:
        """Do nothing: on a pipe the revision changes nothing."""

    async def request(self, request: RpcRequest, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """Write a request and wait for its result."""
        id = cast(int, request.id)
        result: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[id] = result
        try:
            self._write(request.encode())
            return await result
        except asyncio.CancelledError:
            # Writing only fills a buffer, so that a cancelled task need not wait for the server.
            if request.method not in _NEVER_CANCELLED and not self.lost.done():
                with suppress(McpConnectionLost):
                    self._write(RpcNotification(CANCELLED, {"requestId": id}).encode())
            raise
        finally:
            del self._pending[id]

    async def send(self, message: RpcNotification | Reply) -> None:
        """Write a message."""
        with suppress(McpConnectionLost):
            self._write(message.encode())

    async def listen(self) -> None:
        """Wait for ever: the server's own messages come over the pipe that is read anyway."""
        await asyncio.Future()

    async def aclose(self) -> None:
        """Close the child's input, which asks it to exit; then end its whole process group."""
        process = self._process
        if process is None:
            return
        try:
            if not self.lost.done():  # otherwise the group was killed at once
                self._closing = True
                self.lose("was closed")
                # The order of the protocol: the end of the input, then SIGTERM, then SIGKILL.
                if process.stdin is not None:
                    process.stdin.close()
                await process.wait(self._grace)
                process.signal_group(signal.SIGTERM)
                await process.wait(self._grace)
        finally:
            process.close()
        await process.aclose()
        await asyncio.wait({self._watching})

    async def _watch(self, process: ChildProcess, stdout: "_Stdout") -> None:
        """Lose the connection when the output ends, which mostly means that the process has ended."""
        await asyncio.wait({stdout.ended})
        code = await process.wait(_EXIT_SECONDS)
        if code is None:
            reason = "closed its output"
        else:
            reason = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self.lose(stdout.explain(reason))

    def receive(self, message: Message) -> None:
        """Resolve the request that a response belongs to; a response without one is late or forged, and dropped."""
        match message:
            case RpcRequest() | RpcNotification():
                self._on_message(message)
            case RpcResultResponse(id, result):
                if (pending := self._pending_request(id)) is not None:
                    pending.set_result(result)
            case RpcErrorResponse(id, code, text, data):
                if (pending := self._pending_request(id)) is not None:
                    pending.set_exception(RemoteMcpError(text, code, data))

    def lose(self, reason: str) -> None:
        """Close the connection and fail all pending requests."""
        if self.lost.done():
            return
        self.lost.set_result(McpConnectionLost(reason))
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(McpConnectionLost(reason))
        if self._process is not None and not self._closing:  # `aclose` gives it time to exit by itself
            self._process.kill()

    def _pending_request(self, id: int | str | None) -> "asyncio.Future[Mapping[str, Any]] | None":
        pending = self._pending.get(id) if type(id) is int else None
        return None if pending is None or pending.done() else pending

    def _write(self, message: bytes) -> None:
        if self.lost.done():
            raise McpConnectionLost(str(self.lost.result()))
        stdin = cast(PipeWriteTransport, cast(ChildProcess, self._process).stdin)
        if stdin.buffered > _MAX_UNSENT_BYTES:
            self.lose("does not read what it is sent")
            raise McpConnectionLost("does not read what it is sent")
        # A message is one line. In JSON, bare line breaks stand only between tokens, never in strings.
        stdin.write(message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


class _Pipe(asyncio.Protocol):
    """A pipe that the child writes to; reading it can be paused."""

    _paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def _pause(self, seconds: float) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(seconds, self._unpause)

    def _unpause(self) -> None:
        self._paused = False
        self._resume()

    def _resume(self) -> None:
        self._transport.resume_reading()


class _Stderr(_Pipe):
    """Keeps the end of the child's stderr."""

    def __init__(self) -> None:
        self.tail = TailBuffer()

    def data_received(self, data: bytes) -> None:
        self.tail.feed(data)
        if len(data) >= _FULL_CHUNK_BYTES:  # a flood: let other tasks run
            self._pause(0.002)


class _Stdout(_Pipe):
    """Decodes the messages on the child's stdout; `ended` is done when there will be no more.

    Lines are handled in order, a few per step of the event loop. While some are left, or a large one is decoded in a
    thread, the pipe is not read.
    """

    def __init__(self, connection: StdioTransport, stderr: _Stderr) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._lines = LineReader()
        self._throttle = McpReadRateLimit(self._loop.time)
        self._stderr = stderr
        self._invalid_lines = 0
        self._queue: deque[bytes | TruncatedLine | Message] = deque()
        self._working = self._closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def data_received(self, data: bytes) -> None:
        lines = self._lines.feed(data)
        self._queue += lines
        if (seconds := self._throttle.pause(len(lines), len(data))) > 0:
            self._pause(seconds)
        if not self._working:
            self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._resume()

    def explain(self, reason: str) -> str:
        """Add the invalid lines and the end of stderr to the reason of a loss."""
        stderr = printable(str(self._stderr.tail))
        invalid = f", after {self._invalid_lines} lines that were no JSON-RPC" if self._invalid_lines else ""
        return f"{reason}{invalid}" + (f"; it said: {stderr}" if stderr else "")

    def _work(self) -> None:
        """Handle as much of the queue as one step of the event loop may."""
        self._working, size = False, 0
        for _ in range(MESSAGES_PER_STEP):
            if not self._queue or size > LARGE:
                break
            item = self._queue.popleft()
            if isinstance(item, TruncatedLine):
                self._invalid_lines += 1
                self._connection.receive(_too_large(item))
            elif not isinstance(item, bytes):
                self._connection.receive(item)
            elif len(item) <= LARGE:
                size += len(item)
                self._put_first(_decode_line(item))
            else:
                self._working = True
                self._transport.pause_reading()
                self._loop.run_in_executor(None, _decode_line, item).add_done_callback(self._on_decoded)
                return
        if self._invalid_lines > _MAX_INVALID_LINES:
            self._connection.lose("writes to its output what is no JSON-RPC: more than a thousand lines of it")
        if self._queue:
            self._working = True
            self._transport.pause_reading()
            self._loop.call_soon(self._work)
        else:
            self._resume()

    def _on_decoded(self, decoded: "asyncio.Future[list[Message]]") -> None:
        self._put_first([] if decoded.cancelled() else decoded.result())
        self._work()

    def _resume(self) -> None:
        """Read on if all is handled; at the end of the output, report that."""
        if self._working:
            return
        if self._closed:
            if not self.ended.done():
                self.ended.set_result(None)
        elif not self._paused:
            self._transport.resume_reading()

    def _put_first(self, messages: list[Message]) -> None:
        """Put the messages of a line in front of the queue; a line without any is invalid."""
        # A line may be a batch of thousands, which one step of the event loop must not handle alone.
        self._invalid_lines += not messages
        self._queue.extendleft(reversed(messages))


def _decode_line(line: bytes) -> list[Message]:
    try:
        return decode_messages(line)
    except InvalidUpstreamAnswer:
        return []
    except InvalidRequest as error:  # it has too many values to be decoded: fail the call that waits for it
        return [_too_large(TruncatedLine(line[:KEPT_ENDS], line[-KEPT_ENDS:]), error.message)]


def _too_large(line: TruncatedLine, message: str = TOO_LARGE) -> Message:
    """Make the error response for a line that was not decoded; the id of a response stands at one of its ends."""
    found = _ID_FIRST.match(line.head) or _ID_LAST.search(line.tail)
    return RpcErrorResponse(int(found.group(1)) if found else None, INTERNAL_ERROR, message)


def child_environment(configured: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child sees: those that any program needs, and the configured ones."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(configured)
