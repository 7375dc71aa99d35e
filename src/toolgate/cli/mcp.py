"""`toolgate mcp`: the tools over stdin and stdout, for clients that start their MCP servers themselves.

Stdout belongs to the protocol alone, so whatever else in this process or its children writes there reaches stderr
instead, and nobody else can read what the client sends.
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

from toolgate.server.callers.auth import Caller
from toolgate.server.mcp.door import Door
from toolgate.server.mcp.service import Crashed
from toolgate.server.mcp.stdio import LOCAL, LONGEST_LINE, Stdio


def tell(defect: Exception) -> None:
    """A defect of ours, on stderr."""
    sys.stderr.write("".join(traceback.format_exception(defect)))


def serve_stdio(opening: AbstractAsyncContextManager[Door], crashed: Crashed = tell, caller: Caller = LOCAL) -> int:
    """Open the door, serve its tools until the client closes stdin or we are told to stop, and close it again."""
    source, sink = _take(0, os.O_RDONLY), _take(1, os.O_WRONLY)
    try:
        asyncio.run(_serve(opening, source, sink, crashed, caller))
    except BrokenPipeError:
        return 1
    finally:
        for fd in (source, sink):
            os.set_blocking(fd, True)  # it may be somebody's terminal
    return 0


async def _serve(
    opening: AbstractAsyncContextManager[Door], source: int, sink: int, crashed: Crashed, caller: Caller
) -> None:
    async with opening as door:
        reader, write = await _reader(source), await _writer(sink)
        serving = asyncio.ensure_future(Stdio(door, write, crashed, caller).run(reader))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()


def _take(fd: int, mode: int) -> int:
    """The stream by another number; its own one leads from now on where it can do no harm."""
    own = os.dup(fd)
    if mode == os.O_WRONLY:
        os.dup2(2, fd)
    else:
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, fd)
        os.close(nothing)
    return own


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    if _is_file(fd):
        with open(fd, "rb", closefd=False) as file:  # noqa: ASYNC230  # a file does not keep us waiting
            reader.feed_data(file.read())
        reader.feed_eof()
        return reader
    pipe = open(fd, "rb", buffering=0, closefd=False)  # noqa: ASYNC230, SIM115  # a pipe, and the loop closes it
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(fd: int) -> Callable[[bytes], Awaitable[None]]:
    if _is_file(fd):
        return lambda line: _write(fd, line)
    pipe = open(fd, "wb", buffering=0, closefd=False)  # noqa: ASYNC230, SIM115  # a pipe, and the loop closes it
    _, protocol = await asyncio.get_running_loop().connect_write_pipe(_Sink, pipe)
    return protocol.write


class _Sink(asyncio.BaseProtocol):
    """The writing end of a pipe: a write is over when the pipe has taken it all."""

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._free.set()

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    async def write(self, line: bytes) -> None:
        if self._lost:
            raise BrokenPipeError
        self._transport.write(line)
        await self._free.wait()


async def _write(fd: int, line: bytes) -> None:
    os.write(fd, line)


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
