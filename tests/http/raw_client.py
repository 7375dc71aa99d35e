"""A server in a thread and a client on a bare socket, which sends what no HTTP library would."""

import asyncio
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from typing import Any

import uvloop

from toolgate.http.listener import Listener
from toolgate.http.protocol import HttpProtocol
from toolgate.http.request_limits import RequestLimits

Scope = MutableMapping[str, Any]

HANG_SECONDS = 30.0
"""After which a test says that something never happens; nothing here is meant to take seconds."""


class Release:
    """An event that one thread sets and another's event loop waits for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        if self._loop is None:
            self._event.set()
            return
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._event.wait()


class TrivialApp:
    """Responds by path, and records requests for the test.

    `/hold` answers once `release` is set, `/stream` sends a piece and then waits for it, `/late` waits for it and then
    sends two with a long pause, `/flood` sends until the client leaves, `/crash` and `/crash-late` raise, `/unread`
    answers without reading; any other path echoes the body.
    """

    def __init__(self) -> None:
        self.seen: queue.Queue[Scope] = queue.Queue()
        self.departures: queue.Queue[str] = queue.Queue()
        self.last_words: queue.Queue[str] = queue.Queue()
        self.received = 0
        self.release = Release()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.seen.put(scope)
        path = scope["path"].strip("/").replace("-", "_")
        await getattr(self, f"_{path}", self._echo)(receive, send)

    def has_received(self, count: int) -> bool:
        """Whether so many bytes of bodies have arrived."""
        return self.received >= count

    async def _echo(self, receive: Any, send: Any) -> None:
        body = await self._read(receive)
        if body is not None:
            await _answer(send, body or b"hello")

    async def _unread(self, receive: Any, send: Any) -> None:
        await _answer(send, b"no need")

    async def _crash(self, receive: Any, send: Any) -> None:
        raise ValueError("on purpose")

    async def _crash_late(self, receive: Any, send: Any) -> None:
        await _start(send)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("on purpose")

    async def _hold(self, receive: Any, send: Any) -> None:
        body = await self._read(receive)
        if await self._released(receive):
            await _answer(send, body or b"held")

    async def _stream(self, receive: Any, send: Any) -> None:
        await self._read(receive)
        await _start(send)
        await send({"type": "http.response.body", "body": b"first;", "more_body": True})
        try:
            if await self._released(receive):
                await send({"type": "http.response.body", "body": b"last"})
        except asyncio.CancelledError:
            self.last_words.put("cancelled")
            await send({"type": "http.response.body", "body": b"error: shutting down"})

    async def _late(self, receive: Any, send: Any) -> None:
        await self._read(receive)
        await self.release.wait()
        await _start(send)
        await send({"type": "http.response.body", "body": b"first;", "more_body": True})
        await asyncio.sleep(0.6)
        await send({"type": "http.response.body", "body": b"last"})

    async def _flood(self, receive: Any, send: Any) -> None:
        await self._read(receive)
        await _start(send)
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 8192, "more_body": True})
            await asyncio.sleep(0)
        self.departures.put("left")

    async def _read(self, receive: Any) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.departures.put("left")
                return None
            body += message["body"]
            self.received += len(message["body"])
            if not message["more_body"]:
                return bytes(body)

    async def _released(self, receive: Any) -> bool:
        """Wait for the test or for the client's departure, whichever comes first."""
        leaving = asyncio.ensure_future(receive())
        released = asyncio.ensure_future(self.release.wait())
        try:
            await asyncio.wait({leaving, released}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                self.departures.put("left")
            return not leaving.done()
        finally:
            leaving.cancel()
            released.cancel()


async def _start(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


async def _answer(send: Any, body: bytes) -> None:
    await _start(send, (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.body", "body": body})


class Client:
    """One connection that sends and receives bytes."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(HANG_SECONDS)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self._reader = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str = "/", *headers: str) -> None:
        self.send(request("GET", path, *headers))

    def read_head(self) -> tuple[int, dict[str, str]]:
        status = int(self._reader.readline().split()[1])
        headers = {}
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def read(self) -> tuple[int, bytes]:
        status, headers = self.read_head()
        if "content-length" in headers:
            return status, self._reader.read(int(headers["content-length"]))
        return status, b"".join(self.chunks())

    def read_bytes(self, count: int) -> bytes:
        return self._reader.read(count)

    def chunks(self) -> Iterator[bytes]:
        while size := self.read_chunk():
            yield size

    def read_chunk(self) -> bytes:
        size = int(self._reader.readline(), 16)
        chunk = self._reader.read(size)
        self._reader.readline()
        return chunk

    def rest(self) -> bytes:
        """Everything until the server closes; a reset counts as closing."""
        pieces = []
        with contextlib.suppress(ConnectionError):
            while piece := self._reader.read1(65536):
                pieces.append(piece)
        return b"".join(pieces)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: toolgate.test", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def until(true: Callable[[], bool]) -> None:
    """Poll for what sends no event."""
    deadline = time.monotonic() + HANG_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class DrivenLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can put forward."""

    def __init__(self) -> None:
        self.skipped = 0.0
        super().__init__()

    def time(self) -> float:
        """Real time and what was skipped."""
        return super().time() + self.skipped


class Served:
    """A listener in its own thread; `drain` asks it to end as a signal would."""

    def __init__(self, app: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop], **options: Any) -> None:
        self._opened: queue.Queue[int | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(app, loop_factory, options))
        self._thread.start()
        opened = self._opened.get(timeout=HANG_SECONDS)
        if isinstance(opened, BaseException):
            self._thread.join()
            raise opened
        self.port = opened

    def _run(self, app: Any, loop_factory: Any, options: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            try:
                runner.run(self._serve(app, options))
            except (Exception, SystemExit) as failure:  # noqa: BLE001 - re-raised in the test's own thread
                self._opened.put(failure)

    async def _serve(self, app: Any, options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.listener = Listener(app, **options)
        await self.listener.open()
        self._opened.put(self.listener.port)
        await self.listener.drained()
        await self.listener.close()

    @property
    def open(self) -> list[HttpProtocol]:
        """The connections that are open."""
        return self.listener.connections()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self.open)

    def call(self, function: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(function)

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run the work in the server's loop, and wait for its end."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_SECONDS)

    def advance(self, seconds: float) -> None:
        """Put the clock of a `DrivenLoop` forward, and return once everything due by then was called."""
        assert isinstance(self._loop, DrivenLoop)
        for passing in (seconds, 0.0):
            self.run(self._pass(passing))

    async def _pass(self, seconds: float) -> None:
        assert isinstance(self._loop, DrivenLoop)
        self._loop.skipped += seconds

    def drain(self) -> None:
        self.call(self.listener.drain)

    def join(self) -> None:
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive(), "the server did not end"


@contextlib.contextmanager
def served(
    app: Any,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    drain_seconds: float = 0.0,
    **options: Any,
) -> Iterator[Served]:
    """Run `app` behind the guard; `options` are limits, or whatever else a listener takes."""
    names = RequestLimits.__struct_fields__
    limits = RequestLimits(**{name: options.pop(name) for name in names if name in options})
    server = Served(app, loop_factory, limits=limits, drain_seconds=drain_seconds, **options)
    try:
        yield server
    finally:
        if isinstance(app, TrivialApp):
            app.release.set()
        if server._thread.is_alive():
            server.drain()
        server.join()
