"""Serve an ASGI application on a listening socket, and drain it without cutting off requests.

It knows sockets, signals and tasks. It must not know what the application does.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from email.utils import formatdate
from typing import Any

import msgspec
import uvloop

from toolgate.conversation.errors import InternalGatewayError
from toolgate.http.asgi_types import AsgiApp
from toolgate.http.error_response import EncodeError, openai_error_body
from toolgate.http.lifespan import Lifespan
from toolgate.http.protocol import HttpListenerState, HttpProtocol
from toolgate.http.request_limits import RequestLimits
from toolgate.http.sockets import BACKLOG, bind, url_of
from toolgate.scheduling import FairThreads

_FLUSH_SECONDS = 2.0  # for clients to read the last of their responses
_IDLE_SECONDS = 0.5  # for requests that are already on their way on idle connections
_FORCED_SECONDS = 1.0  # for the application to stop after a second signal
_POLL_SECONDS = 0.02
_OWN_FILES = 64  # that the process has open beside connections
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StartupFailed(InternalGatewayError):
    """The application did not start; it has logged why."""


class Listener:
    """A listening socket and its connections."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RequestLimits | None = None,
        encode_error: EncodeError = openai_error_body,
        drain_seconds: float = 30.0,
        end_seconds: float = 5.0,
        on_drain: Callable[[], None] | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        """`sock` is bound already and replaces `port`: several processes may accept from one socket."""
        limits = limits or RequestLimits()
        self._address = (host, port)
        self._bound = sock
        self._covered: dict[int, asyncio.Server] = {}
        self._stall_seconds = limits.write_stall_seconds
        self._state: HttpListenerState = HttpListenerState(app, limits, encode_error)
        self._lifespan = Lifespan(app, self._state.app_state)
        self._drain_seconds = drain_seconds
        self._end_seconds = end_seconds
        self._on_drain = on_drain
        self._ending = asyncio.Event()
        self._hurried = asyncio.Event()
        self._forced = asyncio.Event()
        self._linger_seconds = min(_IDLE_SECONDS, drain_seconds)
        self._retiring = False
        self._date_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that was bound, also if it was given as 0."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return url_of(self._socket, self._address[0])

    async def open(self) -> None:
        """Bind, start the application and accept connections; raise without leaving anything open."""
        self._socket = self._bound or bind(*self._address, self._stall_seconds)
        try:
            if not await self._lifespan.startup():
                raise StartupFailed("The application did not start; the log says why.")
            self._set_date()
            self._server = await self._accept(self._socket)
        except BaseException:
            self._socket.close()
            raise

    async def _accept(self, sock: socket.socket) -> asyncio.Server:
        loop, state = asyncio.get_running_loop(), self._state
        return await loop.create_server(lambda: HttpProtocol(state, loop), sock=sock, backlog=BACKLOG)

    async def cover(self, place: int, sock: socket.socket | None) -> None:
        """Accept from this socket, too, or no longer if it is None; `place` identifies it."""
        before = self._covered.pop(place, None)
        if before is not None:
            before.close()
        if sock is not None and not self._ending.is_set():
            self._covered[place] = await self._accept(sock)

    def _set_date(self) -> None:
        # Not for every response: it changes once a second.
        self._state.default_headers[:] = [(b"date", formatdate(usegmt=True).encode())]
        self._date_timer = asyncio.get_running_loop().call_later(1, self._set_date)

    def drain(self) -> None:
        """End the listener: the first time when all requests are answered, the second time at once."""
        if self._hurried.is_set():
            self._forced.set()
        self._hurried.set()
        self._ending.set()

    def retire(self, seconds: float) -> None:
        """End the listener while others serve on: idle clients may send one more request within this time."""
        self._linger_seconds = seconds
        self._retiring = True
        self._ending.set()

    async def drained(self) -> None:
        """Wait until `drain` or `retire` is called."""
        await self._ending.wait()

    async def close(self) -> None:
        """Stop accepting, let running requests finish, cancel those that do not, then stop the application."""
        self._ending.set()
        if self._on_drain is not None:
            self._on_drain()
        self._state.draining = True
        for server in (self._server, *self._covered.values()):
            server.close()
        for connection in self.connections():
            connection.drain()
        # Requests may be on their way on connections that are idle here. A listener that retires gives them longer, which a
        # first signal ends; otherwise that signal has begun the drain, and it takes a second one.
        await self._wait_closed(self._linger_seconds, self._hurried if self._retiring else self._forced)
        await self._finish(self._drain_seconds, with_last_requests=True)
        for task in tuple(self._state.tasks):
            task.cancel("The server is shutting down.")
        await self._finish(self._end_seconds)  # a cancelled request still sends its error
        for connection in self.connections():
            connection.shutdown()
        if not self._forced.is_set():
            await self._wait_closed(_FLUSH_SECONDS, self._forced)
        for connection in self.connections():
            connection.transport.abort()
        await asyncio.sleep(0)  # `connection_lost` is called in the next round of the loop
        # A second signal must end the server even if the application does not stop.
        stopping = asyncio.ensure_future(self._lifespan.shutdown())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({stopping}, timeout=_FORCED_SECONDS)
        stopping.cancel()
        forced.cancel()
        if self._date_timer is not None:
            self._date_timer.cancel()
        self._socket.close()

    async def _finish(self, seconds: float, with_last_requests: bool = False) -> None:
        """Wait for running requests, and `with_last_requests` for clients that were not sent `connection: close`.

        Requests that arrive meanwhile on open connections count, too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        forced = loop.create_task(self._forced.wait())
        while not self._forced.is_set() and loop.time() < deadline:
            running = {*self._state.tasks, forced}
            if len(running) == 1 and not (with_last_requests and any(one.may_send_last for one in self.connections())):
                break
            timeout = deadline - loop.time() if len(running) > 1 else _POLL_SECONDS
            await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()

    async def _wait_closed(self, seconds: float, stop: asyncio.Event) -> None:
        """Wait until every connection is closed, the time is over or `stop` is set."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Transports report their closing only to their protocol, so this polls.
        while self._state.connections and loop.time() < deadline and not stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def connections(self) -> list[HttpProtocol]:
        """Return the open connections."""
        return list(self._state.connections)

    @property
    def draining(self) -> bool:
        """Whether no new connections are accepted any more."""
        return self._state.draining


@contextlib.asynccontextmanager
async def listening(app: AsgiApp, *, drain_seconds: float = 0.0, **options: Any) -> AsyncGenerator[str, None]:
    """Serve inside the running loop and yield the base URL; requests that still run at the end are cancelled."""
    listener = Listener(app, drain_seconds=drain_seconds, **options)
    await listener.open()
    try:
        yield listener.url
    finally:
        await listener.close()


async def serve(
    app: AsgiApp, *, limits: RequestLimits | None = None, on_ready: Callable[[str], None] | None = None, **options: Any
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once. `options` are those of `Listener`."""
    asyncio.get_running_loop().set_default_executor(FairThreads())  # callers share its threads fairly
    listener = Listener(app, limits=with_files(limits or RequestLimits()), **options)
    await listener.open()
    with _on_signals(listener.drain):
        try:
            if on_ready is not None:
                on_ready(listener.url)
            await listener.drained()
        finally:
            await listener.close()


def run(app: AsgiApp, **options: Any) -> None:
    """Serve in an event loop of its own."""
    uvloop.run(serve(app, **options))


def with_files(limits: RequestLimits) -> RequestLimits:
    """Raise the limit of open files for the connections, or allow no more connections than there are files for.

    Each may need a second file upstream. Without files, connections would wait unaccepted instead of getting an error.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OWN_FILES + 2 * limits.connections
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return msgspec.structs.replace(limits, connections=max(1, (soft - _OWN_FILES) // 2))
    return limits


@contextlib.contextmanager
def _on_signals(call: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may have handlers
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
