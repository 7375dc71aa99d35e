"""From an ASGI application to a listening socket, and back down without cutting anybody off.

uvicorn lends its configuration, its lifespan and its protocol.  Its `Server` is not used: it exits the process when the
application does not start, wakes up ten times a second, and cancels what is still running without time for a last word.

It knows sockets, signals and tasks.  It must not know what the application does.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from typing import Any

import msgspec
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from toolgate.conversation.errors import GatewayFault
from toolgate.server.edge.binding import BACKLOG, bind, url_of
from toolgate.server.edge.guard import guarded
from toolgate.server.edge.head import Limits
from toolgate.server.edge.refusal import Refuse, plain_refusal

App = Callable[..., Any]

_FLUSH_SECONDS = 2.0
_IDLE_SECONDS = 0.5  # in which a client that is about to ask on a connection it has kept is still answered
_FORCED_SECONDS = 1.0
_LOOK_SECONDS = 0.02
_OWN_FILES = 64  # what the process has open beside connections
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class NotStarted(GatewayFault):
    """The application has said in the log why it cannot be served."""


class Listener:
    """One listening socket and the requests behind it."""

    def __init__(
        self,
        app: App,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        refuse: Refuse = plain_refusal,
        drain_seconds: float = 30.0,
        end_seconds: float = 5.0,
        on_drain: Callable[[], None] | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        """`sock` is bound already and takes the place of `port`: several processes may accept from one."""
        limits = limits or Limits()
        self._address = (host, port)
        self._given = sock
        self._covered: dict[int, asyncio.Server] = {}
        self._stall_seconds = limits.write_stall_seconds
        self._protocol = guarded(limits, refuse)
        self._config = Config(
            app,
            http=self._protocol,
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._state = ServerState()
        self._drain_seconds = drain_seconds
        self._end_seconds = end_seconds
        self._on_drain = on_drain
        self._told = asyncio.Event()
        self._hurried = asyncio.Event()
        self._forced = asyncio.Event()
        self._linger_seconds = min(_IDLE_SECONDS, drain_seconds)
        self._retired = False
        self._dating: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that was bound, also when any would do."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients find us."""
        return url_of(self._socket, self._address[0])

    async def open(self) -> None:
        """Bind, start the application and accept connections, or raise and leave nothing behind."""
        self._socket = self._given or bind(*self._address, self._stall_seconds)
        try:
            await self._start()
        except BaseException:
            self._socket.close()
            raise

    async def _start(self) -> None:
        config = self._config
        config.load()
        self._lifespan = config.lifespan_class(config)
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise NotStarted("The application did not start; the log says why.")
        self._date()
        self._server = await self._accept(self._socket)

    async def _accept(self, sock: socket.socket) -> asyncio.Server:
        config, state, app_state = self._config, self._state, self._lifespan.state
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: self._protocol(config, state, app_state, loop), sock=sock, backlog=BACKLOG
        )

    async def cover(self, place: int, sock: socket.socket | None) -> None:
        """Accept from this socket, too, until it is None; `place` is its name."""
        former = self._covered.pop(place, None)
        if former is not None:
            former.close()
        if sock is not None and not self._told.is_set():
            self._covered[place] = await self._accept(sock)

    def _date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._dating = asyncio.get_running_loop().call_later(1, self._date)

    def drain(self) -> None:
        """Ask the listener to end: the first time when all is answered, the second time at once."""
        if self._hurried.is_set():
            self._forced.set()
        self._hurried.set()
        self._told.set()

    def retire(self, seconds: float) -> None:
        """Ask the listener to end while others serve on: idle connections may ask once more within this time."""
        self._linger_seconds = seconds
        self._retired = True
        self._told.set()

    async def drained(self) -> None:
        """Wait until `drain` or `retire` is called."""
        await self._told.wait()

    async def close(self) -> None:
        """Stop accepting, let open requests finish, then end them with time for a last word, then stop the application."""
        self._told.set()
        if self._on_drain is not None:
            self._on_drain()
        self._protocol.draining = True
        for server in (self._server, *self._covered.values()):
            server.close()
        for connection in self._connections():
            connection.drain()
        await self._emptied(self._linger_seconds, self._hurried if self._retired else self._forced)
        await self._finish(self._drain_seconds, with_turns=True)
        await self._end()
        await self._stop()
        if self._dating is not None:
            self._dating.cancel()
        self._socket.close()

    async def _finish(self, seconds: float, with_turns: bool = False) -> None:
        """Wait for running requests, and `with_turns` for clients that were not told to close.

        Those that arrive meanwhile on open connections count too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        forced = loop.create_task(self._forced.wait())
        while not self._forced.is_set() and loop.time() < deadline:
            running = {*self._state.tasks, forced}
            if len(running) == 1 and not (with_turns and any(one.owed_turn for one in self._connections())):
                break
            patience = deadline - loop.time() if len(running) > 1 else _LOOK_SECONDS
            await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()

    async def _end(self) -> None:
        for task in tuple(self._state.tasks):
            task.cancel("The server is shutting down.")
        await self._finish(self._end_seconds)
        for connection in self._connections():
            connection.shutdown()
        if not self._forced.is_set():
            await self._emptied(_FLUSH_SECONDS, self._forced)
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)  # a connection is told of its loss in the loop's next round

    async def _stop(self) -> None:
        """Stop the application, but wait only a moment for it once we are asked to end at once."""
        stopping = asyncio.ensure_future(self._lifespan.shutdown())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({stopping}, timeout=_FORCED_SECONDS)
        stopping.cancel()
        forced.cancel()

    async def _emptied(self, seconds: float, enough: asyncio.Event) -> None:
        """Wait until every connection is gone, but not longer than that, nor when it is enough."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Transports report their closing to nobody but their protocol, so this asks.
        while self._state.connections and loop.time() < deadline and not enough.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _connections(self) -> list[Any]:
        return list(self._state.connections)


@contextlib.asynccontextmanager
async def listening(app: App, *, drain_seconds: float = 0.0, **options: Any) -> AsyncIterator[str]:
    """Serve inside the running loop and yield the base URL; on the way out requests still open are ended."""
    listener = Listener(app, drain_seconds=drain_seconds, **options)
    await listener.open()
    try:
        yield listener.url
    finally:
        await listener.close()


async def serve(
    app: App, *, limits: Limits | None = None, on_ready: Callable[[str], None] | None = None, **options: Any
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once.  `options` are `Listener`'s."""
    listener = Listener(app, limits=with_files(limits or Limits()), **options)
    await listener.open()
    with _on_signals(listener.drain):
        try:
            if on_ready is not None:
                on_ready(listener.url)
            await listener.drained()
        finally:
            await listener.close()


def run(app: App, **options: Any) -> None:
    """Serve in an event loop of its own; what a command line calls."""
    uvloop.run(serve(app, **options))


def with_files(limits: Limits) -> Limits:
    """Ask for the files that the connections need, and allow no more connections than there are files for.

    Each may need a second one upstream, so that running out ends in refusals, not in connections nobody accepts.
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
