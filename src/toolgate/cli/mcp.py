"""`toolgate mcp`: serve the tools over stdin and stdout, for clients that start their MCP servers themselves.

Only the protocol may use stdin and stdout: other output of this process or its children goes to stderr, and their input
is empty.
"""

import asyncio
import os
import signal
import stat
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import cast

from toolgate.auth.authenticator import Caller
from toolgate.mcp.server.methods import OnCrash
from toolgate.mcp.server.stdio import LOCAL, MAX_LINE_BYTES, StdioServerSession
from toolgate.mcp.server.tool_catalog_protocol import ToolCatalog


def print_traceback(error: Exception) -> None:
    """Print the traceback of an unexpected error to stderr."""
    sys.stderr.write("".join(traceback.format_exception(error)))


def serve_stdio(
    opening: AbstractAsyncContextManager[ToolCatalog], on_crash: OnCrash = print_traceback, caller: Caller = LOCAL
) -> int:
    """Open the catalog and serve its tools until the client closes stdin or a signal stops us."""
    stdin, stdout = _take_over(0, os.O_RDONLY), _take_over(1, os.O_WRONLY)
    try:
        asyncio.run(_serve(opening, stdin, stdout, on_crash, caller))
    except BrokenPipeError:
        return 1
    finally:
        for fd in (stdin, stdout):
            os.set_blocking(fd, True)  # a terminal would stay non-blocking for the shell
    return 0


async def _serve(
    opening: AbstractAsyncContextManager[ToolCatalog], stdin: int, stdout: int, on_crash: OnCrash, caller: Caller
) -> None:
    async with opening as catalog:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        # The event loop cannot wait for regular files, as in `toolgate mcp < requests.jsonl`.
        if _is_file(stdin):
            with open(stdin, "rb", closefd=False) as file:  # noqa: ASYNC230  # reading a file does not block for long
                reader.feed_data(file.read())
            reader.feed_eof()
        else:
            pipe = open(stdin, "rb", buffering=0, closefd=False)  # noqa: ASYNC230, SIM115  # the loop closes it
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        write = await _open_writer(stdout)
        serving = asyncio.ensure_future(StdioServerSession(catalog, write, on_crash, caller).run(reader))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        # A signal ends the session, not this task: the catalog is closed in order, and the exit status is 0.
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()


def _take_over(fd: int, mode: int) -> int:
    """Duplicate a standard stream, and redirect the original to stderr or to an empty input."""
    duplicate = os.dup(fd)
    if mode == os.O_WRONLY:
        os.dup2(2, fd)
    else:
        empty = os.open(os.devnull, mode)
        os.dup2(empty, fd)
        os.close(empty)
    return duplicate


async def _open_writer(fd: int) -> Callable[[bytes], Awaitable[None]]:
    if _is_file(fd):

        async def write(line: bytes) -> None:
            os.write(fd, line)

        return write
    pipe = open(fd, "wb", buffering=0, closefd=False)  # noqa: ASYNC230, SIM115  # a pipe, and the loop closes it
    _, protocol = await asyncio.get_running_loop().connect_write_pipe(_PipeWriter, pipe)
    return protocol.write


class _PipeWriter(asyncio.BaseProtocol):
    """Writes to a pipe; `write` returns when the pipe has taken everything."""

    def __init__(self) -> None:
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        # Writing pauses as soon as anything is buffered, so that `write` waits for a slow client.
        self._transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        # A write that waits for the pipe must not wait forever.
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, line: bytes) -> None:
        if self._lost:
            raise BrokenPipeError
        self._transport.write(line)
        await self._writable.wait()


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
