"""Supervise several worker processes: bind their sockets, handle signals, start and replace workers."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec.structs import replace

from toolgate.app.local_model import share_engine
from toolgate.app.startup_helpers import make_logger, print_banner
from toolgate.config import Config
from toolgate.config.settings import ServerSettings
from toolgate.config.stable_read import wait_until_settled
from toolgate.http.sockets import bind, url_of
from toolgate.workers import how_many
from toolgate.workers.hub import SupervisorHub
from toolgate.workers.last_accepted_config import LastAcceptedConfigText, open_text
from toolgate.workers.pool import ServerWorkerPool, SupervisorTimeouts
from toolgate.workers.process import ServerWorkerProcess, WorkerStart

# Seconds that a worker may take to end after its time to drain.
_BEYOND_DRAIN = 15.0

IN_MEMORY = "storage: several workers need a storage that they can share, such as sqlite:///toolgate.db"


def supervise(config: Config, *, config_path: Path | None, on_signals: Callable[[], None] = lambda: None) -> int:
    """Serve with several workers until a signal ends it, and return the exit status.

    SIGHUP reloads the configuration in all workers, SIGUSR2 replaces them one after the other. `on_signals` is called
    once signals are handled.
    """
    if config.storage.reveal() == "sqlite://":
        sys.stderr.write(f"{config.source or 'The built-in configuration'} cannot be used:\n  - {IN_MEMORY}\n")
        return 2
    with _listening_sockets(config.server, how_many(config)) as sockets:
        return asyncio.run(_supervise(config, config_path, sockets, on_signals))


async def _supervise(
    config: Config, path: Path | None, sockets: Sequence[socket.socket], on_signals: Callable[[], None]
) -> int:
    log, loop = make_logger(config), asyncio.get_running_loop()
    engine = share_engine(config, log)  # one for all workers: its weights take gigabytes
    with _worker_starter(config.server, path, sockets) as starter:
        pool = ServerWorkerPool(
            len(sockets),
            starter.start,
            SupervisorHub(engine, starter.accepted.accept),
            log,
            SupervisorTimeouts(drain=config.server.drain_seconds + _BEYOND_DRAIN),
            renew=starter.renew,
            read=starter.read,
        )

        def end() -> None:
            for one in sockets:
                one.close()  # new connections are refused as soon as the workers have closed theirs, too
            pool.drain()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        loop.add_signal_handler(signal.SIGHUP, pool.reload)
        loop.add_signal_handler(signal.SIGUSR2, pool.renew)
        try:
            if await pool.open():
                on_signals()
                print_banner(url_of(sockets[0], config.server.host), config)
                if engine is not None:
                    engine.start()
            return await pool.ended()
        finally:
            if engine is not None:
                await engine.aclose()


class _WorkerStarter:
    """Starts worker processes with the configuration in force, or with a new one."""

    def __init__(
        self, server: ServerSettings, path: Path | None, sockets: Sequence[socket.socket], lifeline: int
    ) -> None:
        self.accepted = LastAcceptedConfigText(path)
        self._path = path
        fds = tuple([one.fileno() for one in sockets])
        config = str(path) if path else None
        self._arguments = WorkerStart(0, config, server.host, server.port, len(sockets), fds, lifeline=lifeline)

    async def start(self, place: int) -> ServerWorkerProcess:
        """Start a worker with the configuration in force."""
        return await self._start(place, self.accepted.text)

    async def renew(self, place: int) -> ServerWorkerProcess:
        """Start a worker with the configuration in the file, which must not lose checks of the one in force."""
        text = await self.read()
        if text is None and self._path is not None:
            raise OSError(f"{self._path} is missing or cannot be read")
        return await self._start(place, text, self.accepted.text)

    async def read(self) -> bytes | None:
        """Read the file once it has stopped changing."""
        if self._path is not None:  # a half-written file may be valid, and lack its last keys
            await asyncio.to_thread(wait_until_settled, self._path)
        return self.accepted.read()

    async def _start(self, place: int, text: bytes | None, before: bytes | None = None) -> ServerWorkerProcess:
        # Workers inherit the texts as open files: a path could change before it is read, an argument is seen in `ps`.
        with ExitStack() as stack:
            texts = {name: one for name, one in {"text": text, "before": before}.items() if one is not None}
            files = {name: stack.enter_context(open_text(one)).fileno() for name, one in texts.items()}
            return await ServerWorkerProcess.start(replace(self._arguments, place=place, **files))


@contextmanager
def _worker_starter(
    server: ServerSettings, path: Path | None, sockets: Sequence[socket.socket]
) -> Iterator[_WorkerStarter]:
    """Open the lifeline: a pipe whose other end closes with this process, however it ends, so that workers notice."""
    lifeline, held = os.pipe()
    try:
        yield _WorkerStarter(server, path, sockets, lifeline)
    finally:
        os.close(held)
        os.close(lifeline)


@contextmanager
def _listening_sockets(server: ServerSettings, count: int) -> Iterator[list[socket.socket]]:
    """Bind a socket for each worker, all at one address, so that the kernel shares connections out evenly.

    Workers that accept from one socket take what they can: of two, one was seen to get three of four connections.
    Where the kernel cannot share out, they accept from one socket all the same.
    """
    port, stall = server.port, server.limits.write_stall_seconds
    sockets: list[socket.socket] = []
    if sys.platform != "linux":
        sockets = [bind(server.host, port, stall)] * count
    while len(sockets) < count:
        sockets.append(bind(server.host, port, stall, shared=True))
        port = sockets[0].getsockname()[1]  # of port 0 the kernel chooses one, which the others must share
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()
