"""Start one worker process and exchange messages with it. Must not know why it was started or what replaces it."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
from msgspec import Struct

from toolgate.processes.child import ChildProcess
from toolgate.wire.length_prefix import OverlongMessage, read_prefixed_async
from toolgate.workers import messages

_MODULE = "toolgate.app.worker"


class WorkerStart(Struct, frozen=True):
    """The arguments of a worker process; sockets, connection and lifeline are inherited file descriptors.

    The worker accepts from the socket of its own place, and from another's while that has no worker. `text` holds the
    configuration, `before` the one in force, whose checks the new one must not lose.
    """

    place: int
    config: str | None
    host: str
    port: int
    workers: int
    sockets: tuple[int, ...]
    connection: int = -1
    lifeline: int = -1
    text: int = -1
    before: int = -1


class ServerWorkerProcess:
    """A worker process, as the supervisor sees it; `metrics` are those it sent last."""

    def __init__(
        self,
        place: int,
        process: ChildProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.place = place
        self.started_at = loop.time()
        self.metrics = ""
        self.serving = False
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ready: asyncio.Future[bool] = loop.create_future()

    @classmethod
    async def start(cls, arguments: WorkerStart) -> "ServerWorkerProcess":
        """Start a process that will serve; OSError if there can be none."""
        ours, theirs = socket.socketpair()
        texts = [descriptor for descriptor in (arguments.text, arguments.before) if descriptor >= 0]
        with theirs:
            encoded = msgspec.json.encode(msgspec.structs.replace(arguments, connection=theirs.fileno())).decode()
            try:
                # It leads a session of its own: a Ctrl-C is for the supervisor, which ends its workers in order.
                process = ChildProcess(
                    [sys.executable, "-P", "-m", _MODULE, encoded],  # -P: no modules of the folder it is started in
                    stdin=None,
                    pass_fds=(*dict.fromkeys(arguments.sockets), theirs.fileno(), arguments.lifeline, *texts),
                )
            except BaseException:
                ours.close()
                raise
        try:
            return cls(arguments.place, process, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            process.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: messages.ToWorker) -> None:
        """Send a message, unless the worker has closed its connection."""
        if not self._writer.is_closing():
            self._writer.write(messages.encode(message))

    async def received(self) -> AsyncGenerator[messages.FromWorker, None]:
        """Yield the worker's messages until it closes its connection; one that sends nonsense is killed."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                try:
                    frame = await read_prefixed_async(self._reader.readexactly, messages.LONGEST)
                    message = messages.decode_from_worker(frame)
                except (OverlongMessage, msgspec.DecodeError, RecursionError):
                    self.kill()  # it would serve on, and its requests wait for ever for replies to what is not read
                    return
                yield message

    def note_ready(self) -> None:
        """Note that the worker serves."""
        if not self._ready.done():
            self._ready.set_result(True)
            self.serving = True

    async def wait_ready(self, seconds: float) -> bool:
        """Wait until the worker serves; false if it ends instead, or is killed because it takes too long."""
        done, _ = await asyncio.wait({self._ready}, timeout=seconds)
        if not done:
            self.kill()  # `wait_ended` then resolves the future
        return await asyncio.shield(self._ready)

    async def wait_ended(self) -> int:
        """Wait for the end of the process and return its exit status."""
        code = await self._process.wait()
        assert code is not None  # `wait` was given no timeout
        self._writer.close()
        self.serving = False
        if not self._ready.done():
            self._ready.set_result(False)
        return code

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
