"""What the supervisor does when workers die, with processes that do nothing but that."""

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
from toolgate.config.settings import Server
from toolgate.limits import KeyLimits
from toolgate.processes.child import ChildProcess
from toolgate.server.supervisor import how_many, words
from toolgate.server.supervisor.board import Board
from toolgate.server.supervisor.crew import BAD_CONFIG, GAVE_UP, Crew, Terms
from toolgate.server.supervisor.hand import Hand
from toolgate.telemetry.logs import Log

QUICK = Terms(start=10.0, first_pause=0.001, longest_pause=0.005, attempts=3, drain=5.0, forced=0.1, linger=0.0)
SERVES = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(bytes([0, 0, 0, 16]) + b'{"type":"ready"}')
while not (heard := line.recv(4096)) or b"drain" not in heard and b"retire" not in heard:
    if not heard: break
"""


class Agency:
    """Starts workers that run a given program, and remembers all of them."""

    def __init__(self, *programs: str) -> None:
        self.programs = list(programs)
        self.hired: list[Hand] = []

    async def hire(self, place: int) -> Hand:
        program = self.programs.pop(0) if len(self.programs) > 1 else self.programs[0]
        ours, its = socket.socketpair()
        with its:
            command = [sys.executable, "-S", "-c", program, str(its.fileno())]
            process = ChildProcess(command, stdin=None, pass_fds=(its.fileno(),))
        hand = Hand(place, process, *await asyncio.open_unix_connection(sock=ours))
        self.hired.append(hand)
        return hand


async def until(true: Callable[[], bool]) -> None:
    """Wait for what processes do without telling anybody."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def logged(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def log_to(path: Path) -> Log:
    return Log(fd=os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND))


@pytest.mark.parametrize("said", ["0", "-1", "many", "257", "1.5"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(said: str) -> None:
    result = CliRunner().invoke(app, ["serve", f"--workers={said}"])
    assert result.exit_code == BAD_CONFIG
    assert "takes a number from 1 to 256, or auto" in result.output


def test_one_worker_for_each_processor_is_as_many_as_we_may_use() -> None:
    assert how_many(Config(server=Server(workers=0))) == len(os.sched_getaffinity(0))
    assert how_many(Config()) == 1


async def test_workers_that_die_at_once_again_and_again_are_given_up(tmp_path: Path) -> None:
    agency = Agency(SERVES, "raise SystemExit(7)")
    crew = Crew(1, agency.hire, Board(), log_to(tmp_path / "log"), QUICK)
    assert await crew.open()
    agency.hired[0].kill()
    async with asyncio.timeout(20):
        assert await crew.ended() == GAVE_UP
    assert len(agency.hired) == 1 + QUICK.attempts - 1
    assert logged(tmp_path / "log") == ["worker ended"] * QUICK.attempts + ["giving up"]


async def test_as_long_as_somebody_serves_nobody_gives_up(tmp_path: Path) -> None:
    agency = Agency(SERVES, "raise SystemExit(7)")
    crew = Crew(2, agency.hire, Board(), log_to(tmp_path / "log"), QUICK)
    assert await crew.open()
    async with asyncio.timeout(20):
        await until(lambda: len(agency.hired) >= 8)
        crew.drain()
        assert await crew.ended() == 0
    assert "giving up" not in logged(tmp_path / "log")


async def test_a_first_worker_that_cannot_start_is_the_end(tmp_path: Path) -> None:
    for status, code in ((BAD_CONFIG, BAD_CONFIG), (1, GAVE_UP)):
        agency = Agency(f"raise SystemExit({status})")
        crew = Crew(3, agency.hire, Board(), log_to(tmp_path / "log"), QUICK)
        assert not await crew.open()
        async with asyncio.timeout(20):
            assert await crew.ended() == code
        assert len(agency.hired) == 1


async def test_a_server_that_is_told_to_end_while_it_starts_starts_no_more_workers(tmp_path: Path) -> None:
    """Their listening sockets are closed by then, and the numbers of those may stand for something else."""
    agency = Agency(SERVES)

    async def hire(place: int) -> Hand:
        hand = await agency.hire(place)

        def begins() -> None:
            Hand.begins(hand)
            crew.drain()

        hand.begins = begins  # type: ignore[method-assign]
        return hand

    crew = Crew(3, hire, Board(), log_to(tmp_path / "log"), QUICK)
    async with asyncio.timeout(30):
        assert not await crew.open()
        assert await crew.ended() == 0
    assert len(agency.hired) == 1


async def test_when_there_can_be_no_process_it_is_tried_again(tmp_path: Path) -> None:
    agency, refusals = Agency(SERVES), [False, True, False]

    async def hire(place: int) -> Hand:
        if refusals.pop(0):
            raise BlockingIOError("Resource temporarily unavailable")
        return await agency.hire(place)

    crew = Crew(1, hire, Board(), log_to(tmp_path / "log"), QUICK)
    assert await crew.open()
    agency.hired[0].kill()
    async with asyncio.timeout(20):
        await until(lambda: len(agency.hired) == 2 and agency.hired[1].serving)
        crew.drain()
        assert await crew.ended() == 0
    assert logged(tmp_path / "log") == ["worker ended", "worker not started"]


async def test_a_worker_that_does_not_end_is_ended(tmp_path: Path) -> None:
    deaf = SERVES.partition("while")[0] + "time.sleep(60)"
    crew = Crew(1, (agency := Agency(deaf)).hire, Board(), log_to(tmp_path / "log"), QUICK)
    assert await crew.open()
    crew.drain()
    crew.drain()
    async with asyncio.timeout(5):
        assert await crew.ended() == 0
    assert not agency.hired[0].serving


async def test_a_worker_that_dies_while_all_are_renewed_is_replaced_once(tmp_path: Path) -> None:
    agency = Agency(SERVES)
    crew = Crew(2, agency.hire, Board(), log_to(tmp_path / "log"), QUICK)
    assert await crew.open()
    first, second = agency.hired
    crew.renew()
    second.kill()
    async with asyncio.timeout(20):
        await until(lambda: not first.serving and not second.serving)
        await until(lambda: sum(hand.serving for hand in agency.hired) >= 2)
        assert sorted(hand.place for hand in agency.hired if hand.serving) == [0, 1]
        crew.drain()
        await crew.ended()


async def test_what_a_dead_worker_held_is_given_back() -> None:
    """(fault: M3)"""
    board, told = Board(), list[words.ToWorker]()

    class Silent:
        place, counted, serving = 0, "", True

        def say(self, message: words.ToWorker) -> None:
            told.append(message)

    first, second = Silent(), Silent()
    board.joined(first)  # type: ignore[arg-type]
    board.joined(second)  # type: ignore[arg-type]
    take = words.Take(1, "ann", KeyLimits(concurrency=1), 0)
    for hand in (first, second):
        await board.heard(hand, take)  # type: ignore[arg-type]
    board.left(first)  # type: ignore[arg-type]
    await board.heard(second, take)  # type: ignore[arg-type]
    taken = [one.taken.refused for one in told if isinstance(one, words.Granted)]
    assert taken == [None, "concurrency", None]
