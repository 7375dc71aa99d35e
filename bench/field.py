"""The field of a measurement: the mock upstream and the peers that run on it; knows no topic."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from bench.load import Job, Outcome
from bench.measure import cpu_seconds
from bench.peers import Direct, Peer
from bench.processes import WORK, Failed, free_port, load, running
from bench.shapes import CHAT, TERMINATORS, Route, Shape


class Pace(NamedTuple):
    """How thorough a run is: repeats of a measurement, CPU seconds each should take, and the like."""

    name: str
    repeats: int
    cpu_budget: float
    latency_seconds: float
    starts: int
    patience: float
    thorough: bool


QUICK = Pace("quick", repeats=2, cpu_budget=0.12, latency_seconds=1, starts=1, patience=10, thorough=False)
FULL = Pace("full", repeats=5, cpu_budget=0.4, latency_seconds=3, starts=5, patience=60, thorough=True)


# CPU seconds to warm a server for, however quick the run: a cold Portkey costs twice a warm one, which would flatter us.
WARM = 8.0
CONNECTIONS = 20


class Standing(NamedTuple):
    """A server that runs: its process, its port and the upstream's."""

    peer: Peer | Direct
    pid: int
    port: int
    upstream: int

    def job(self, route: Route, shape: Shape, requests: int, connections: int = CONNECTIONS) -> Job | None:
        """The job of sending a shape to this server; nothing if it cannot take the route."""
        target = self.peer.target(route, shape.model, self.upstream)
        if target is None:
            return None
        body = shape.body(route.client, target.model)
        end = TERMINATORS[route.client] if shape.stream else ""
        connections = min(connections, requests)
        return Job(self.port, target.path, dict(target.headers), body, requests, connections, shape.words, end)


class Cost(NamedTuple):
    """CPU seconds per right answer, and how the requests went."""

    per_request: float
    outcome: Outcome

    @property
    def seconds(self) -> float:
        """CPU seconds of the whole burst."""
        return self.per_request * self.outcome.ok


def cost(server: Standing, job: Job) -> Cost:
    """What the job costs the server's process tree, for each right answer."""
    before = cpu_seconds(server.pid)
    outcome = load(job)
    spent = cpu_seconds(server.pid) - before
    return Cost(spent / outcome.ok if outcome.ok else math.nan, outcome)


@contextmanager
def mock() -> Iterator[int]:
    """The mock upstream's port, while it runs."""
    port = free_port()
    with running("mock", [sys.executable, "-m", "bench.mock", str(port)], port):
        yield port


@contextmanager
def standing(peer: Peer, upstream: int, called: str = "") -> Iterator[Standing]:
    """The peer, while it runs; where the same one may run already, it is called otherwise."""
    port = free_port()
    name = called or peer.name
    start = peer.start(WORK / f"{name}-run", port, upstream)
    with running(name, start.command, port, env=start.env) as process:
        yield Standing(peer, process.pid, port, upstream)


class Field:
    """What topics measure on: the peers, the upstream, the pace, and all peers running at once for those who ask.

    Side by side they take turns at every repeat, so that a drift of the machine meets all alike.
    """

    def __init__(self, peers: Sequence[Peer], upstream: int, pace: Pace, wants: Callable[[str, str], bool]) -> None:
        self.peers = list(peers)
        self.upstream = upstream
        self.pace = pace
        self.wants = wants
        self.absent: dict[str, str] = {}
        self.stack = ExitStack()
        self.servers: list[Standing] | None = None

    def together(self) -> list[Standing]:
        """Every peer, running; started at the first call, one that does not start is left out with the reason."""
        if self.servers is None:
            self.servers = []
            for peer in list(self.peers):
                try:
                    server = self.stack.enter_context(standing(peer, self.upstream))
                except Failed as error:
                    self.drop(peer, str(error))
                else:
                    self.servers.append(server)
                    self._warm(server)
        return self.servers

    def _warm(self, server: Standing) -> None:
        job = server.job(CHAT, Shape("mock"), 300)
        if job is not None:
            warm(server, job, WARM, patience=3)

    def drop(self, peer: Peer, reason: str) -> None:
        """Leaves a peer out of the rest of the run."""
        self.absent[peer.name] = reason
        self.peers.remove(peer)

    def close(self) -> None:
        """Ends whatever still runs."""
        self.stack.close()


def warm(server: Standing, job: Job, most_seconds: float, patience: int = 1) -> None:
    """Repeats the job until it got no cheaper `patience` times: just-in-time compilers need thousands of requests."""
    best, spent = math.inf, 0.0
    while patience and spent < most_seconds:
        found = cost(server, job)
        if not found.per_request < best * 0.95:
            patience -= 1
        best, spent = min(best, found.per_request), spent + found.seconds
