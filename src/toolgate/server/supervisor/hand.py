"""One worker's process and the line to it, as the supervisor sees them. Knows nothing of why it was started."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from toolgate.processes.child import ChildProcess
from toolgate.server.supervisor import words
from toolgate.wire.lengths import Overlong, next_framed

_MODULE = "toolgate.server.supervisor.worker"


class Post(Struct, frozen=True):
    """What a worker is told when it is started; sockets, line and lifeline are inherited file descriptors.

    It accepts from the socket of its own place, and from another's while nobody else does. `text` holds the text of the
    configuration, `before` the one in force, which the new one must not lose checks of.
    """

    place: int
    config: str | None
    host: str
    port: int
    workers: int
    sockets: tuple[int, ...]
    line: int = -1
    lifeline: int = -1
    text: int = -1
    before: int = -1

    @property
    def texts(self) -> tuple[int, ...]:
        """The descriptors of texts that are given."""
        return tuple([descriptor for descriptor in (self.text, self.before) if descriptor >= 0])


class Hand:
    """A worker."""

    def __init__(
        self,
        place: int,
        process: ChildProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.place = place
        self.began = loop.time()
        self.counted = ""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._begun: asyncio.Future[bool] = loop.create_future()
        self.serving = False

    @classmethod
    async def start(cls, post: Post) -> "Hand":
        """A process that begins to serve; OSError if there can be none."""
        ours, its = socket.socketpair()
        with its:
            told = msgspec.json.encode(msgspec.structs.replace(post, line=its.fileno())).decode()
            try:
                # It leads a session of its own: a Ctrl-C is for the supervisor, which ends us in order.
                process = ChildProcess(
                    [sys.executable, "-P", "-m", _MODULE, told],
                    stdin=None,
                    pass_fds=(*dict.fromkeys(post.sockets), its.fileno(), post.lifeline, *post.texts),
                )
            except BaseException:
                ours.close()
                raise
        try:
            return cls(post.place, process, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            process.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def say(self, message: words.ToWorker) -> None:
        """Tell it something, if it can still hear."""
        if not self._writer.is_closing():
            self._writer.write(words.encode(message))

    async def heard(self) -> AsyncIterator[words.FromWorker]:
        """What it says, until it is gone."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, Overlong, msgspec.DecodeError):
            while True:
                yield words.decode_from_worker(await next_framed(self._reader.readexactly, words.LONGEST))

    def begins(self) -> None:
        """It serves."""
        if not self._begun.done():
            self._begun.set_result(True)
            self.serving = True

    async def serves(self, seconds: float) -> bool:
        """Wait until it serves; false if it ends instead, or is ended because that takes too long."""
        done, _ = await asyncio.wait({self._begun}, timeout=seconds)
        if not done:
            self.kill()
        return await asyncio.shield(self._begun)

    async def gone(self) -> int:
        """Wait for its end, and tell its exit status."""
        code = await self._process.wait()
        assert code is not None  # there was no limit to the time
        self._writer.close()
        self.serving = False
        if not self._begun.done():
            self._begun.set_result(False)
        return code

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
