"""From a configuration to a supervisor that runs: sockets, signals, workers."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolgate.config import Config
from toolgate.config.settings import Server
from toolgate.server.edge.binding import bind, url_of
from toolgate.server.models.local import engine_room
from toolgate.server.startup import announce, log_of
from toolgate.server.supervisor import how_many
from toolgate.server.supervisor.accepted_config import AcceptedConfig, open_text
from toolgate.server.supervisor.board import Board
from toolgate.server.supervisor.crew import Crew, Terms
from toolgate.server.supervisor.hand import Hand, Post
from toolgate.telemetry.logs import Log

if TYPE_CHECKING:
    from toolgate.server.supervisor.lender import Lender

_BEYOND_DRAIN = 15.0
"""Seconds that a worker may take to end after its time to drain."""

IN_MEMORY = "storage: several workers need a storage that they can share, such as sqlite:///toolgate.db"


def supervise(config: Config, *, config_path: Path | None) -> int:
    """Have several workers serve until told to stop; the exit status.

    SIGHUP has all read the configuration again, SIGUSR2 replaces them one after the other.
    """
    if config.storage.reveal() == "sqlite://":
        sys.stderr.write(f"{config.source or 'The built-in configuration'} cannot be used:\n  - {IN_MEMORY}\n")
        return 2
    with _sockets(config.server, how_many(config)) as sockets:
        return asyncio.run(_supervise(config, config_path, sockets))


async def _supervise(config: Config, path: Path | None, sockets: Sequence[socket.socket]) -> int:
    log, loop = log_of(config), asyncio.get_running_loop()
    lifeline, held = os.pipe()  # the end that is held is closed with us, however we end
    fds = tuple([one.fileno() for one in sockets])
    server, accepted = config.server, AcceptedConfig(path)

    async def start(place: int, text: bytes | None, before: bytes | None = None) -> Hand:
        post = Post(place, str(path) if path else None, server.host, server.port, len(sockets), fds, lifeline=lifeline)
        with ExitStack() as stack:
            given = {"text": text, "before": before}
            open_at = {
                name: stack.enter_context(open_text(one)).fileno() for name, one in given.items() if one is not None
            }
            return await Hand.start(replace(post, **open_at))

    async def hire(place: int) -> Hand:
        return await start(place, accepted.text)

    async def renew(place: int) -> Hand:
        return await start(place, accepted.read(), accepted.text)

    lender = _lender(config, log)
    board, terms = Board(lender, accepted.accept), Terms(drain=server.drain_seconds + _BEYOND_DRAIN)
    crew = Crew(len(sockets), hire, board, log, terms, renew=renew, read=accepted.read)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, crew, sockets)
    loop.add_signal_handler(signal.SIGHUP, crew.reload)
    loop.add_signal_handler(signal.SIGUSR2, crew.renew)
    try:
        if await crew.open():
            announce(url_of(sockets[0], server.host), config)
            if lender is not None:
                lender.start()
        return await crew.ended()
    finally:
        if lender is not None:
            await lender.aclose()
        os.close(held)
        os.close(lifeline)


def _lender(config: Config, log: Log) -> "Lender | None":
    """What lends the model on this machine, if there is to be one."""
    room = engine_room(config, log)
    if room is None:
        return None
    from toolgate.server.supervisor.lender import Lender

    return Lender(room)


def _end(crew: Crew, sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()  # newcomers are refused as soon as the workers have closed theirs
    crew.drain()


@contextmanager
def _sockets(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """A listening socket for each worker, all at one address, so that the kernel shares connections out evenly.

    Workers that accept from one socket take what they can: of two, one was seen to get three of four connections.
    Where the kernel does not share out, they do it all the same.
    """
    if sys.platform != "linux":
        sockets = [bind(server.host, server.port, server.limits.write_stall_seconds)] * count
    else:
        sockets = _bound(server, count)
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


def _bound(server: Server, count: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    port, stall = server.port, server.limits.write_stall_seconds
    for _ in range(count):
        one = bind(server.host, port, stall, shared=True)
        port = one.getsockname()[1]
        sockets.append(one)
    return sockets
