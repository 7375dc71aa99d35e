"""The pool replaces workers that die; its workers here are small programs."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolgate.cli.commands import app
from toolgate.config import Config
from toolgate.config.settings import ServerSettings
from toolgate.limits import KeyLimits
from toolgate.processes.child import ChildProcess
from toolgate.telemetry.log_writer import Logger
from toolgate.workers import how_many, messages
from toolgate.workers.hub import SupervisorHub
from toolgate.workers.pool import BAD_CONFIG, GAVE_UP, ServerWorkerPool, SupervisorTimeouts
from toolgate.workers.process import ServerWorkerProcess

QUICK = SupervisorTimeouts(
    start=10.0, first_pause=0.001, longest_pause=0.005, attempts=3, drain=5.0, forced=0.1, linger=0.0
)
SERVES = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(bytes([0, 0, 0, 16]) + b'{"type":"ready"}')
while not (received := line.recv(4096)) or b"drain" not in received and b"retire" not in received:
    if not received: break
"""
SENDS_NONSENSE = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(bytes([0, 0, 0, 16]) + b'{"type":"ready"}' + bytes([0, 0, 0, 2]) + b"{]")
while line.recv(4096): pass
"""


class WorkerStarter:
    """Starts workers that run a given program, and remembers all of them."""

    def __init__(self, *programs: str) -> None:
        self.programs = list(programs)
        self.started: list[ServerWorkerProcess] = []

    async def start(self, place: int) -> ServerWorkerProcess:
        program = self.programs.pop(0) if len(self.programs) > 1 else self.programs[0]
        ours, its = socket.socketpair()
        with its:
            command = [sys.executable, "-S", "-c", program, str(its.fileno())]
            process = ChildProcess(command, stdin=None, pass_fds=(its.fileno(),))
        worker = ServerWorkerProcess(place, process, *await asyncio.open_unix_connection(sock=ours))
        self.started.append(worker)
        return worker


async def until(true: Callable[[], bool]) -> None:
    """Poll for what sends no event."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def logged(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def log_to(path: Path) -> Logger:
    return Logger(fd=os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND))


@pytest.mark.parametrize("value", ["0", "-1", "many", "257", "1.5"])
def test_an_invalid_number_of_workers_is_refused(value: str) -> None:
    result = CliRunner().invoke(app, ["serve", f"--workers={value}"])
    assert result.exit_code == BAD_CONFIG
    assert "takes a number from 1 to 256, or auto" in result.output


def test_zero_workers_stand_for_one_per_available_processor() -> None:
    assert how_many(Config(server=ServerSettings(workers=0))) == len(os.sched_getaffinity(0))
    assert how_many(Config()) == 1


async def test_the_pool_gives_up_when_its_workers_die_as_soon_as_they_start(tmp_path: Path) -> None:
    starter = WorkerStarter(SERVES, "raise SystemExit(7)")
    pool = ServerWorkerPool(1, starter.start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    starter.started[0].kill()
    async with asyncio.timeout(30):
        assert await pool.ended() == GAVE_UP
    assert len(starter.started) == 1 + QUICK.attempts - 1
    assert logged(tmp_path / "log") == ["worker ended"] * QUICK.attempts + ["giving up"]


async def test_the_pool_does_not_give_up_while_a_worker_serves(tmp_path: Path) -> None:
    starter = WorkerStarter(SERVES, "raise SystemExit(7)")
    pool = ServerWorkerPool(2, starter.start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    async with asyncio.timeout(30):
        await until(lambda: len(starter.started) >= 8)
        pool.drain()
        assert await pool.ended() == 0
    assert "giving up" not in logged(tmp_path / "log")


async def test_a_worker_whose_messages_cannot_be_decoded_is_replaced(tmp_path: Path) -> None:
    """Nothing more was read from it, so that its requests waited for replies without end."""
    starter = WorkerStarter(SENDS_NONSENSE, SERVES)
    pool = ServerWorkerPool(1, starter.start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    async with asyncio.timeout(30):
        await until(lambda: len(starter.started) == 2 and starter.started[1].serving)
        pool.drain()
        assert await pool.ended() == 0
    assert logged(tmp_path / "log") == ["worker ended"]


async def test_the_server_ends_when_its_first_worker_cannot_start(tmp_path: Path) -> None:
    for status, code in ((BAD_CONFIG, BAD_CONFIG), (1, GAVE_UP)):
        starter = WorkerStarter(f"raise SystemExit({status})")
        pool = ServerWorkerPool(3, starter.start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
        assert not await pool.open()
        async with asyncio.timeout(30):
            assert await pool.ended() == code
        assert len(starter.started) == 1


async def test_a_drain_during_the_start_starts_no_more_workers(tmp_path: Path) -> None:
    """Their listening sockets are closed by then, and the numbers of those may stand for something else."""
    starter = WorkerStarter(SERVES)

    async def start(place: int) -> ServerWorkerProcess:
        worker = await starter.start(place)

        def note_ready() -> None:
            ServerWorkerProcess.note_ready(worker)
            pool.drain()

        worker.note_ready = note_ready  # type: ignore[method-assign]
        return worker

    pool = ServerWorkerPool(3, start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    async with asyncio.timeout(30):
        assert not await pool.open()
        assert await pool.ended() == 0
    assert len(starter.started) == 1


async def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    starter, refusals = WorkerStarter(SERVES), [False, True, False]

    async def start(place: int) -> ServerWorkerProcess:
        if refusals.pop(0):
            raise BlockingIOError("Resource temporarily unavailable")
        return await starter.start(place)

    pool = ServerWorkerPool(1, start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    starter.started[0].kill()
    async with asyncio.timeout(30):
        await until(lambda: len(starter.started) == 2 and starter.started[1].serving)
        pool.drain()
        assert await pool.ended() == 0
    assert logged(tmp_path / "log") == ["worker ended", "worker not started"]


async def test_a_file_that_cannot_be_read_is_not_left_to_the_workers_to_read(tmp_path: Path) -> None:
    """They served a text that the supervisor did not know, and the next worker started with the one before it."""
    ends_at_a_reload = SERVES.replace("if not received: break", "if not received or b'reload' in received: break")
    pool = ServerWorkerPool(1, WorkerStarter(ends_at_a_reload).start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    pool.reload()
    await until(lambda: bool(logged(tmp_path / "log")))
    assert logged(tmp_path / "log") == ["reload refused"]
    pool.drain()
    assert await pool.ended() == 0


async def test_a_worker_that_ignores_the_drain_is_killed(tmp_path: Path) -> None:
    ignoring = SERVES.partition("while")[0] + "time.sleep(60)"
    pool = ServerWorkerPool(
        1, (starter := WorkerStarter(ignoring)).start, SupervisorHub(), log_to(tmp_path / "log"), QUICK
    )
    assert await pool.open()
    pool.drain()
    pool.drain()
    async with asyncio.timeout(30):
        assert await pool.ended() == 0
    assert not starter.started[0].serving


async def test_a_worker_that_dies_while_all_are_renewed_is_replaced_once(tmp_path: Path) -> None:
    starter = WorkerStarter(SERVES)
    pool = ServerWorkerPool(2, starter.start, SupervisorHub(), log_to(tmp_path / "log"), QUICK)
    assert await pool.open()
    first, second = starter.started
    pool.renew()
    second.kill()
    async with asyncio.timeout(30):
        await until(lambda: not first.serving and not second.serving)
        await until(lambda: sum(worker.serving for worker in starter.started) >= 2)
        assert sorted(worker.place for worker in starter.started if worker.serving) == [0, 1]
        pool.drain()
        await pool.ended()


async def test_the_reservations_of_a_dead_worker_are_released() -> None:
    """(fault: M3)"""
    hub, sent = SupervisorHub(), list[messages.ToWorker]()

    class Silent:
        place, metrics, serving = 0, "", True

        def send(self, message: messages.ToWorker) -> None:
            sent.append(message)

    first, second = Silent(), Silent()
    hub.worker_started(first)  # type: ignore[arg-type]
    hub.worker_started(second)  # type: ignore[arg-type]
    take = messages.ReserveRateLimitMessage(1, "ann", KeyLimits(concurrency=1), 0)
    for worker in (first, second):
        await hub.receive(worker, take)  # type: ignore[arg-type]
    hub.worker_ended(first)  # type: ignore[arg-type]
    await hub.receive(second, take)  # type: ignore[arg-type]
    refused = [one.result.refused for one in sent if isinstance(one, messages.RateLimitReplyMessage)]
    assert refused == [None, "concurrency", None]
