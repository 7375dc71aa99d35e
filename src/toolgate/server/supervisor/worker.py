"""One of several workers: the same server as one that runs alone, on a socket that it was given.

It ends when its supervisor says so, or is gone: a thread of its own sees to that, which a busy event loop cannot hold up.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import uvloop

from toolgate.config import Config, ConfigError, diff, load
from toolgate.conversation.errors import ToolgateError
from toolgate.server.build import Toolgate, edge
from toolgate.server.edge.listen import Listener, NotStarted, with_files
from toolgate.server.startup import spare_the_collector
from toolgate.server.supervisor import words
from toolgate.server.supervisor.accepted_config import digest_of, read_text
from toolgate.server.supervisor.crew import BAD_CONFIG
from toolgate.server.supervisor.foreman import Foreman
from toolgate.server.supervisor.hand import Post

_GRACE = 10.0
"""Seconds beyond the time to drain after which a worker without a supervisor ends, whatever it does."""


def main() -> None:
    """Serve as the first argument says, until the supervisor wants us to end."""
    post = msgspec.json.decode(sys.argv[1], type=Post)
    for number in (signal.SIGHUP, signal.SIGUSR2):  # meant for the supervisor, whoever else they were sent to
        signal.signal(number, signal.SIG_IGN)
    path = Path(post.config) if post.config else None
    text = read_text(post.text)
    try:
        config = _load(post, path, text)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(BAD_CONFIG)
    _end_with(post.lifeline, config.server.drain_seconds + _GRACE)
    sys.exit(uvloop.run(_work(post, config, path, digest_of(text or b""))))


def _load(post: Post, path: Path | None, text: bytes | None) -> Config:
    """The configuration to serve; ConfigError also if it loses checks of the one in force."""

    def loaded(text: bytes | None) -> Config:
        return load(path, os.environ, host=post.host, port=post.port, workers=post.workers, text=text)

    config, before = loaded(text), read_text(post.before)
    if before is None:
        return config
    try:
        in_force = loaded(before)
    except ConfigError:  # a version to come need not read what the last one did
        return config
    diff(in_force, config)
    return config


async def _work(post: Post, config: Config, path: Path | None, digest: str) -> int:
    foreman = Foreman()
    await foreman.open(socket.socket(fileno=post.line))
    try:
        gate = Toolgate(config, foreman=foreman)
    except (
        ValueError,
        OSError,
        ToolgateError,
    ) as error:  # templates, folders and the like, which are looked at only now
        sys.stderr.write(f"{config.source or 'The built-in configuration'} cannot be used:\n  - {error}\n")
        return BAD_CONFIG
    worker = Worker(gate, foreman, path, {fd: socket.socket(fileno=fd) for fd in post.sockets}, post, digest)
    try:
        await worker.serve()
    except NotStarted:
        return 1
    return 0


class Worker:
    """Serves, and does what the supervisor says."""

    def __init__(
        self,
        gate: Toolgate,
        foreman: Foreman,
        path: Path | None,
        sockets: dict[int, socket.socket],
        post: Post,
        digest: str,
    ) -> None:
        """`digest` stands for the text of the configuration that is served."""
        self._digest = digest
        self._gate = gate
        self._foreman = foreman
        self._path = path
        self._sockets = [sockets[fd] for fd in post.sockets]
        options = edge(gate)
        options |= {"limits": with_files(options["limits"]), "sock": self._sockets[post.place].dup()}
        self._listener = Listener(gate, **options)
        self._told_to_end = self._drained = False
        self._covering: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until told to end."""
        foreman, loop = self._foreman, asyncio.get_running_loop()
        foreman.told, foreman.count, foreman.lost = self._obey, self._gate.count, self._end
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        await self._listener.open()
        foreman.say(words.Accepted(self._digest))
        foreman.say(words.Ready())
        spare_the_collector()
        await self._listener.drained()
        for one in self._sockets:
            one.close()  # or newcomers would knock in vain as long as we drain
        await self._listener.close()
        await foreman.aclose()

    def _end(self) -> None:
        """End in order, once: whoever sends a signal to all of us sends it to the supervisor, too, which tells us again."""
        if not self._told_to_end:
            self._told_to_end = True
            self._listener.drain()

    def _obey(self, order: words.ToWorker) -> None:
        match order:
            case words.Drain() if self._drained:
                self._listener.drain()
            case words.Drain():
                self._drained = True
                self._end()
            case words.Retire(seconds):
                self._listener.retire(seconds)
            case words.Reload(text) if self._path is not None:
                digest = digest_of(text or b"")
                self._gate.reload_soon(self._path, text, lambda: self._foreman.say(words.Accepted(digest)))
            case words.Cover(place, begin):
                self._covering = asyncio.create_task(self._cover(place, begin, self._covering))

    async def _cover(self, place: int, begin: bool, before: asyncio.Task[None] | None) -> None:
        """Accept for a place, or no longer, when what was said before is done."""
        if before is not None:
            await asyncio.wait({before})
        if self._sockets[place].fileno() >= 0:  # else we are about to end
            await self._listener.cover(place, self._sockets[place].dup() if begin else None)


def _end_with(lifeline: int, grace: float) -> None:
    """End when the other end of the lifeline is closed, which it is when the supervisor is gone, however it went."""

    def hold() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=hold, daemon=True, name="lifeline").start()


if __name__ == "__main__":
    main()
