"""Run one of several worker processes: the same server as a single process, on an inherited socket.

It ends when its supervisor commands it or is gone. A thread watches for the latter, because the event loop may be busy.
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

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.serve import config_problems, listener_options
from toolgate.app.startup_helpers import tune_garbage_collector
from toolgate.config import Config, ConfigError, ConfigProblem, diff, load
from toolgate.conversation.errors import ToolgateError
from toolgate.http.listener import Listener, StartupFailed, with_files
from toolgate.scheduling import FairThreads
from toolgate.workers import messages
from toolgate.workers.client import SupervisorClient
from toolgate.workers.last_accepted_config import digest_of, read_text
from toolgate.workers.pool import BAD_CONFIG
from toolgate.workers.process import WorkerStart

# How long a worker without a supervisor may take to end after its time to drain.
_GRACE_SECONDS = 10.0


def main() -> None:
    """Serve with the arguments in the command line until the supervisor ends this process."""
    start = msgspec.json.decode(sys.argv[1], type=WorkerStart)
    for number in (signal.SIGHUP, signal.SIGUSR2):  # sent to the whole process group, but meant for the supervisor
        signal.signal(number, signal.SIG_IGN)
    path = Path(start.config) if start.config else None
    text = read_text(start.text)
    try:
        config = _load(start, path, text)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(BAD_CONFIG)

    def end_with_supervisor() -> None:
        os.read(start.lifeline, 1)  # returns when the supervisor has died: the kernel closes its end of the pipe
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(config.server.drain_seconds + _GRACE_SECONDS)
        os._exit(1)  # the event loop hangs: `sys.exit` would only end this thread

    threading.Thread(target=end_with_supervisor, daemon=True, name="lifeline").start()
    sys.exit(uvloop.run(_serve(start, config, path, digest_of(text or b""))))


def _load(start: WorkerStart, path: Path | None, text: bytes | None) -> Config:
    """Load the configuration to serve; ConfigError also if it loses checks of the one in force."""

    def loaded(text: bytes | None) -> Config:
        host, port, workers = start.host, start.port, start.workers
        return load(path, os.environ, host=host, port=port, workers=workers, text=text, regular=True)

    config, before = loaded(text), read_text(start.before)
    if before is None:
        return config
    try:
        in_force = loaded(before)
    except ConfigError:  # a newer version need not understand what the older one did
        return config
    diff(in_force, config)  # raises if the new one would, for example, serve without keys
    return config


async def _serve(start: WorkerStart, config: Config, path: Path | None, digest: str) -> int:
    asyncio.get_running_loop().set_default_executor(FairThreads())
    supervisor = SupervisorClient()
    try:
        server = Toolgate(config, supervisor=supervisor)
    except (ValueError, OSError, ToolgateError) as error:  # folders, templates and the like
        problems = await asyncio.to_thread(config_problems, config) or [ConfigProblem("", str(error))]
        sys.stderr.write(f"{ConfigError(problems, str(config.source or 'The built-in configuration'))}\n")
        return BAD_CONFIG
    try:
        await WorkerServer(server, supervisor, path, start, digest).serve()
    except StartupFailed:
        return 1
    return 0


class WorkerServer:
    """Serves, and carries out the supervisor's commands (`toolgate.workers.client.WorkerCommandHandler`)."""

    def __init__(
        self, server: Toolgate, supervisor: SupervisorClient, path: Path | None, start: WorkerStart, digest: str
    ) -> None:
        """`digest` identifies the text of the configuration that is served; `path` is where it is reloaded from."""
        self._server = server
        self._supervisor = supervisor
        self._path = path
        self._digest = digest
        self._connection = socket.socket(fileno=start.connection)
        self._sockets = [socket.socket(fileno=fd) for fd in start.sockets]
        options = listener_options(server)
        options |= {"limits": with_files(options["limits"]), "sock": self._sockets[start.place].dup()}
        self._listener = Listener(server, **options)
        self._ending = self._drained = False
        self._covering: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until a signal or the supervisor ends it."""
        supervisor, loop = self._supervisor, asyncio.get_running_loop()
        await supervisor.open(self._connection, self)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        await self._listener.open()
        supervisor.send(messages.WorkerServesConfigMessage(self._digest))
        supervisor.send(messages.WorkerReadyMessage())
        tune_garbage_collector()
        await self._listener.drained()
        for one in self._sockets:
            one.close()  # or new connections would wait in the backlog while this worker drains
        await self._listener.close()
        await supervisor.aclose()

    def supervisor_lost(self) -> None:
        """End, because the supervisor is gone."""
        self._end()

    def metrics(self) -> bytes:
        """Return this worker's metrics in Prometheus' text format."""
        return self._server.render_metrics()

    def handle(self, command: messages.ToWorker) -> None:
        """Carry out a command of the supervisor."""
        match command:
            # A second command does not wait for requests, like a second Ctrl+C.
            case messages.DrainWorkerMessage() if self._drained:
                self._listener.drain()
            case messages.DrainWorkerMessage():
                self._drained = True
                self._end()
            case messages.RetireWorkerMessage(seconds):
                self._listener.retire(seconds)
            case messages.ReloadConfigMessage(text) if self._path is not None:
                accepted = messages.WorkerServesConfigMessage(digest_of(text))
                self._server.reload_soon(self._path, text, lambda: self._supervisor.send(accepted))
            case messages.CoverWorkerSocketMessage(place, begin):
                self._covering = asyncio.create_task(self._cover(place, begin, self._covering))

    def _end(self) -> None:
        # A signal to the process group arrives here and at the supervisor, whose command then comes second.
        if not self._ending:
            self._ending = True
            self._listener.drain()

    async def _cover(self, place: int, begin: bool, before: asyncio.Task[None] | None) -> None:
        """Start or stop to accept from the socket of another place, after the previous such command is done."""
        if before is not None:
            await asyncio.wait({before})
        if self._sockets[place].fileno() >= 0:  # closed sockets mean that this worker is about to end
            await self._listener.cover(place, self._sockets[place].dup() if begin else None)


if __name__ == "__main__":
    main()
