"""Cold start to the first answer, memory at rest, and memory while a thousand streams are open."""

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from bench.field import Field, Standing
from bench.figures import Figure
from bench.load import Outcome, why_missing
from bench.measure import resident_bytes
from bench.peers import Peer
from bench.processes import WORK, Failed, free_port, hold, launched
from bench.shapes import CHAT, Shape

NAME = "footprint"
TITLE = "Start and memory"

START = "cold start to the first answer"
IDLE = "memory at rest"
STREAMS = 1000
OPEN = f"memory with {STREAMS:,} open streams"

SETTLE = 1.0  # seconds after the first answer before memory at rest is read
ENOUGH = 12.0  # seconds of starting after which no further start is tried


class Starts(NamedTuple):
    """What several cold starts of one peer showed."""

    seconds: tuple[float, ...]
    idle: tuple[float, ...]
    resident: int
    outcome: Outcome


def measure(field: Field) -> Iterator[Figure]:
    """Each peer alone, started several times; streams are opened in the last start."""
    if not any(field.wants(NAME, line) for line in (START, IDLE, OPEN)):
        return
    for peer in list(field.peers):
        try:
            found = _starts(field, peer)
        except Failed as error:
            field.drop(peer, str(error))
            continue
        yield Figure(NAME, START, peer.name, "s", found.seconds, len(found.seconds))
        yield Figure(NAME, IDLE, peer.name, "bytes", found.idle, len(found.idle))
        outcome = found.outcome
        if outcome.ok:
            yield Figure(NAME, OPEN, peer.name, "bytes", (float(found.resident),), outcome.ok, outcome.failures)
        else:
            yield Figure(NAME, OPEN, peer.name, "bytes", failures=outcome.failures, absent=why_missing([outcome]))


def _starts(field: Field, peer: Peer) -> Starts:
    seconds: list[float] = []
    idle: list[float] = []
    while True:
        with cold(peer, field.upstream, field.pace.patience + 60) as (server, took):
            seconds.append(took)
            time.sleep(SETTLE)
            idle.append(float(resident_bytes(server.pid)))
            if len(seconds) < field.pace.starts and sum(seconds) < ENOUGH:
                continue
            resident, outcome = _open_streams(server, field.pace.patience)
            return Starts(tuple(seconds), tuple(idle), resident, outcome)


def _open_streams(server: Standing, patience: float) -> tuple[int, Outcome]:
    job = server.job(CHAT, Shape("mock-slow", stream=True), STREAMS)
    assert job is not None
    return hold(msgspec.structs.replace(job, hold=True, patience=patience), server.pid)


@contextmanager
def cold(peer: Peer, upstream: int, patience: float) -> Iterator[tuple[Standing, float]]:
    """The peer started from nothing, and the seconds until it gave its first right answer."""
    port = free_port()
    start = peer.start(WORK / f"{peer.name}-run", port, upstream)
    began = time.perf_counter()
    with launched(peer.name, start.command, env=start.env) as process:
        server = Standing(peer, process.pid, port, upstream)
        while not _answers(server):
            if process.poll() is not None:
                raise Failed(f"{peer.title} ended with {process.returncode} at its start")
            if time.perf_counter() - began > patience:
                raise Failed(f"{peer.title} gave no right answer in {patience:g} s")
            time.sleep(0.002)
        yield server, time.perf_counter() - began


def _answers(server: Standing) -> bool:
    """Whether a whole request gets a right answer now."""
    job = server.job(CHAT, Shape("mock"), 1)
    assert job is not None
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", job.path, job.body, {"content-type": "application/json", **job.headers})
        answer = connection.getresponse()
        return answer.read().count(b"lorem") >= job.words and answer.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
