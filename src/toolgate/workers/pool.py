"""Keep a fixed number of workers serving: start them, replace those that end, and renew all of them on request.

Each place has a listening socket of its own, so that the kernel shares connections out evenly. The supervisor has all of
them open, so that none is lost with a worker. While a place has no worker, another one accepts from its socket, too.

Renewing the workers and replacing an ended one exclude each other, or one place would get two workers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from msgspec import Struct

from toolgate.telemetry.log_writer import Logger
from toolgate.workers import messages
from toolgate.workers.hub import SupervisorHub
from toolgate.workers.process import ServerWorkerProcess

# The exit status of a supervisor whose workers end as soon as they are started.
GAVE_UP = 3
# The exit status of a worker that cannot use its configuration, and then of the supervisor.
BAD_CONFIG = 2

# Starts a worker for a place; OSError if there can be no process.
StartWorker: TypeAlias = Callable[[int], Awaitable[ServerWorkerProcess]]


class SupervisorTimeouts(Struct, frozen=True):
    """The supervisor's timeouts in seconds; `attempts` in a row may fail while no worker serves."""

    start: float = 60.0
    steady: float = 10.0
    first_pause: float = 0.25
    longest_pause: float = 10.0
    attempts: int = 5
    drain: float = 45.0
    forced: float = 4.0
    linger: float = 5.0


async def no_config_file() -> None:
    """Read nothing: there is no configuration file."""


class ServerWorkerPool:
    """The workers of one server."""

    def __init__(
        self,
        size: int,
        start: StartWorker,
        hub: SupervisorHub,
        log: Logger,
        options: SupervisorTimeouts | None = None,
        *,
        renew: StartWorker | None = None,
        read: Callable[[], Awaitable[bytes | None]] = no_config_file,
    ) -> None:
        """`start` gives a worker the configuration in force, `renew` the text of its file, which `read` returns."""
        self._start_worker = start
        self._start_renewed = renew or start
        self._read_config = read
        self._last_reload: messages.ReloadConfigMessage | None = None
        self._hub = hub
        self._log = log
        self._options = options or SupervisorTimeouts()
        self._at_place: list[ServerWorkerProcess | None] = [None] * size
        self._covering: list[ServerWorkerProcess | None] = [None] * size  # accepts from the place's socket meanwhile
        self._failures = [0] * size
        self._workers: set[ServerWorkerProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()
        self._ended = asyncio.Event()
        self._opening = True
        self._drain_requests = 0
        self._exit_status = 0

    async def open(self) -> bool:
        """Start all workers and return whether they serve; the first alone, so that a common mistake is logged once."""
        if not await self._fill(0):
            return False
        self._opening = False
        async with self._changing:
            await asyncio.gather(*[self._fill(place) for place in range(1, len(self._at_place))])
        return not self._drain_requests

    def reload(self) -> None:
        """Have all workers read the configuration again."""

        async def send_all() -> None:
            text = await self._read_config()
            if text is None:  # workers that read it themselves would serve a text that is not known here
                self._log.error("reload refused", problems=["there is no configuration file that can be read"])
                return
            self._last_reload = messages.ReloadConfigMessage(text)
            for worker in self._workers:
                worker.send(self._last_reload)

        self._run(send_all())

    def renew(self) -> None:
        """Replace all workers, one after the other, while requests are served."""

        async def renew_all() -> None:
            async with self._changing:
                for place in range(len(self._at_place)):
                    if self._drain_requests or not await self._renew_place(place):
                        return
            self._log.info("workers renewed", count=len(self._at_place))

        self._run(renew_all())

    def drain(self) -> None:
        """End all workers: the first time when their requests are answered, the second time at once."""
        self._drain_requests += 1
        for worker in self._workers:
            worker.send(messages.DrainWorkerMessage())
        if self._drain_requests <= 2:
            self._run(self._kill_after(self._options.drain if self._drain_requests == 1 else self._options.forced))
        if not self._workers:
            self._ended.set()

    async def ended(self) -> int:
        """Wait for the end of all workers and return the exit status."""
        await self._ended.wait()
        for task in self._tasks:
            task.cancel()
        return self._exit_status

    async def _kill_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for worker in self._workers:
            worker.kill()

    async def _fill(self, place: int) -> bool:
        """Start a worker at an empty place and return whether it serves."""
        known = self._last_reload  # a reload that comes while the worker starts is sent to it below
        worker = self._at_place[place] = await self._start(place, self._start_worker)
        if worker is None:
            if not self._drain_requests:
                self._failures[place] += 1
                self._retry(place, GAVE_UP)
            return False
        serves = await worker.wait_ready(self._options.start)
        if serves:
            self._send_missed_reload(worker, known)
            self._uncover(place)
        return serves

    def _send_missed_reload(self, worker: ServerWorkerProcess, known: messages.ReloadConfigMessage | None) -> None:
        """Send a new worker the reload that the others got while it was starting."""
        if self._last_reload is not None and self._last_reload is not known:
            worker.send(self._last_reload)

    async def _start(self, place: int, start: StartWorker) -> ServerWorkerProcess | None:
        if self._drain_requests:  # the listening sockets are closed, and their numbers may stand for something else
            return None
        try:
            worker = await start(place)
        except OSError as error:  # no process, no file: there may be one in a moment
            self._log.error("worker not started", place=place, problem=str(error))
            return None
        self._workers.add(worker)
        self._hub.worker_started(worker)
        self._run(self._attend(worker))
        if self._drain_requests:  # `drain` came while the process was started, and did not know it
            worker.send(messages.DrainWorkerMessage())
        return worker

    async def _attend(self, worker: ServerWorkerProcess) -> None:
        """Handle a worker's messages until it ends, then fill its place again unless it was asked to end."""
        async for message in worker.received():
            await self._hub.receive(worker, message)
        status = await worker.wait_ended()
        self._workers.discard(worker)
        self._hub.worker_ended(worker)
        self._cover_instead_of(worker)
        place = worker.place
        if self._at_place[place] is worker:
            self._at_place[place] = None
            if not self._drain_requests:
                # A place whose worker has served for a while gets the next one without a pause.
                lived = asyncio.get_running_loop().time() - worker.started_at
                self._failures[place] = self._failures[place] + 1 if lived < self._options.steady else 0
                if not self._opening or status != BAD_CONFIG:
                    self._log.error("worker ended", place=place, pid=worker.pid, status=status, seconds=round(lived, 3))
                self._cover(place)
                self._retry(place, status)
        if self._drain_requests and not self._workers:
            self._ended.set()

    def _retry(self, place: int, status: int) -> None:
        """Fill a place again after a pause, or give up when no worker serves and too many starts have failed."""
        serving = any(one.serving for one in self._workers)
        if serving or not (self._opening or self._failures[place] >= self._options.attempts):
            self._run(self._refill(place))
            return
        self._exit_status = status if status == BAD_CONFIG else GAVE_UP
        if status != BAD_CONFIG:  # else the worker has printed what is wrong
            self._log.error("giving up", problem="workers end as soon as they are started; the lines above say why")
        self.drain()

    async def _refill(self, place: int) -> None:
        failures, options = self._failures[place], self._options
        if failures:
            await asyncio.sleep(min(options.longest_pause, options.first_pause * 2 ** (failures - 1)))
        async with self._changing:
            # A renewal may have filled the place during the pause.
            if self._at_place[place] is None and not self._drain_requests:
                await self._fill(place)

    async def _renew_place(self, place: int) -> bool:
        """Start a new worker at a place, then retire the old one; false if the new one does not serve."""
        known = self._last_reload
        new = await self._start(place, self._start_renewed)
        if new is None or not await new.wait_ready(self._options.start):
            self._log.error("workers not renewed", place=place, problem="the new worker did not start; the old stays")
            return False
        self._send_missed_reload(new, known)
        # Before the old one retires, so that `_attend` does not take its end for a crash.
        old, self._at_place[place] = self._at_place[place], new
        self._uncover(place)
        if old is not None:
            old.send(messages.RetireWorkerMessage(self._options.linger))
            self._cover_instead_of(old)
        return True

    def _cover(self, place: int) -> None:
        """Have another worker accept from the socket of a place without a worker."""
        other = next((one for one in self._at_place if one is not None and one.serving), None)
        self._covering[place] = other
        if other is not None:
            other.send(messages.CoverWorkerSocketMessage(place, True))

    def _uncover(self, place: int) -> None:
        other, self._covering[place] = self._covering[place], None
        if other is not None:
            other.send(messages.CoverWorkerSocketMessage(place, False))

    def _cover_instead_of(self, ending: ServerWorkerProcess) -> None:
        """Find other workers for the places that an ending one accepted for."""
        for place, cover in enumerate(self._covering):
            if cover is ending and not self._drain_requests:
                self._cover(place)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
