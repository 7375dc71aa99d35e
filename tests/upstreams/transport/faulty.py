"""Upstreams that misbehave on purpose: a scripted raw server, and a proxy that spoils what passes. Knows no client of ours.

async def script(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 9\\r\\n\\r\\nhal")
    peer.reset()

async with Faulty(script) as upstream:
    ... upstream.url ... upstream.requests ...
"""

import asyncio
import contextlib
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

import pytest
import trustme
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
PATIENCE = 60.0


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's loop and on uvloop, never for longer than PATIENCE seconds."""

    def run(loop_name: str, **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(asyncio.wait_for(test(**fixtures), PATIENCE))

    functools.update_wrapper(run, test)
    named = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*inspect.signature(test).parameters.values(), named])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_name", LOOPS)(run)


def head(*lines: str, status: str = "200 OK") -> bytes:
    """The head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode("latin-1")


def whole(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    """An answer whose length is declared."""
    return head(f"content-length: {len(body)}", *lines, status=status) + body


def chunk(piece: bytes) -> bytes:
    """One piece of a chunked body; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def chunked(*pieces: bytes) -> bytes:
    """An answer in chunks, up to its end."""
    return head("transfer-encoding: chunked") + b"".join(map(chunk, (*pieces, b"")))


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """One accepted connection in the hands of a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.left = asyncio.Event()

    async def request(self) -> Request | None:
        """The next request, or nothing when the client has left."""
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        method, target, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, target, headers, body)

    async def send(self, *pieces: bytes) -> None:
        """Write and wait until it is out of our hands."""
        self.writer.writelines(pieces)
        await self.writer.drain()

    async def slices(self, stream: bytes, size: int = 1) -> None:
        """Write in slices, each in a packet of its own."""
        for start in range(0, len(stream), size):
            await self.send(stream[start : start + size])
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the client has closed its end, one way or the other."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.left.set()

    def half_close(self) -> None:
        """Send FIN but go on listening."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Send RST."""
        reset(self.writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST instead of FIN."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Faulty:
    """A server that plays a script on every connection, then closes it; a failed assertion in a script is raised at exit."""

    script: Script
    tls: ssl.SSLContext | None = None
    port: int = 0
    peers: list[Peer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failures: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1/chat"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        if self._failures and exc[0] is None:
            raise self._failures[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await self.script(self._recorded(peer))
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        except AssertionError as failure:
            self._failures.append(failure)
        finally:
            self._tasks.discard(task)
            await _close(writer)

    def _recorded(self, peer: Peer) -> Peer:
        read = peer.request

        async def request() -> Request | None:
            found = await read()
            if found is not None:
                self.requests.append(found)
            return found

        peer.request = request  # type: ignore[method-assign]
        return peer


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 30)


def answering(*answers: bytes) -> Script:
    """A script that keeps the connection and gives these answers in turn, the last one for ever."""
    left = list(answers)

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def relay_to(port: int, answer: bytes = b"HTTP/1.1 200 Open\r\n\r\n") -> Script:
    """A forward proxy that opens every CONNECT to one port on loopback, whatever was asked for or answered."""

    async def script(peer: Peer) -> None:
        await peer.request()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await peer.send(answer)
        upward = asyncio.ensure_future(_pump(peer.reader, writer))
        try:
            await _pump(reader, peer.writer)
        finally:
            upward.cancel()
            await _close(writer)

    return script


@dataclass(frozen=True)
class Fault:
    """What a proxy does to the bytes that come back: slow them, slice them, and stop them after so many."""

    latency: float = 0.0
    slice: int = 65536
    after: int | None = None
    then: Literal["stall", "fin", "rst"] = "fin"


@dataclass
class FaultProxy:
    """A TCP proxy in front of a real server on loopback; `fault` may be changed between connections."""

    target: int
    fault: Fault = Fault()
    port: int = 0

    async def __aenter__(self) -> Self:
        self._front = await Faulty(self._relay).__aenter__()
        self.port = self._front.port
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._front.__aexit__(*exc)

    async def _relay(self, peer: Peer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        upward = asyncio.ensure_future(_pump(peer.reader, writer))
        try:
            await self._spoil(reader, peer)
        finally:
            upward.cancel()
            await _close(writer)

    async def _spoil(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        fault, passed = self.fault, 0
        while piece := await reader.read(
            fault.slice if fault.after is None else min(fault.slice, fault.after - passed)
        ):
            await asyncio.sleep(fault.latency)
            await peer.send(piece)
            passed += len(piece)
            if passed == fault.after:
                await self._stop(fault, peer)
                return

    async def _stop(self, fault: Fault, peer: Peer) -> None:
        if fault.then == "rst":
            peer.reset()
        elif fault.then == "stall":
            await asyncio.Event().wait()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.close()


def server_tls(authority: trustme.CA, host: str = "127.0.0.1", *, expired: bool = False) -> ssl.SSLContext:
    """A server's context with a certificate for `host`."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host, not_after=yesterday if expired else None).configure_cert(context)
    return context


def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context that trusts this authority and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context
