"""The field of a measurement: the mock upstream and the peers that run beside each other; knows no topic."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from bench.load import Job, Outcome
from bench.measure import cpu_seconds
from bench.peers import Direct, Peer, Target
from bench.processes import WORK, free_port, load, running
from bench.shapes import TERMINATORS, Route, Shape


class Pace(NamedTuple):
    """How thorough a run is: repeats of a measurement and CPU seconds each of them should take."""

    repeats: int
    cpu_budget: float
    latency_seconds: float
    starts: int
    quick: bool


QUICK = Pace(repeats=3, cpu_budget=0.15, latency_seconds=2, starts=1, quick=True)
FULL = Pace(repeats=5, cpu_budget=0.4, latency_seconds=5, starts=5, quick=False)


class Standing(NamedTuple):
    """A peer that runs: its process, its port and the upstream's."""

    peer: Peer | Direct
    pid: int
    port: int
    upstream: int

    def job(self, route: Route, shape: Shape, requests: int, connections: int = 20) -> Job | None:
        """The job of sending a shape to this peer; nothing if it cannot take the route."""
        target: Target | None = self.peer.target(route, shape.model, self.upstream)
        if target is None:
            return None
        body = shape.body(route.client, target.model)
        end = TERMINATORS[route.client] if shape.stream else ""
        connections = min(connections, requests)
        return Job(self.port, target.path, dict(target.headers), body, requests, connections, shape.words, end)


class Cost(NamedTuple):
    """CPU seconds per request, and how the requests went."""

    per_request: float
    outcome: Outcome


def cost(standing: Standing, job: Job) -> Cost:
    """What the job costs the peer's process tree, for each right answer."""
    before = cpu_seconds(standing.pid)
    outcome = load(job)
    spent = cpu_seconds(standing.pid) - before
    return Cost(spent / outcome.ok if outcome.ok else math.nan, outcome)


@contextmanager
def mock() -> Iterator[int]:
    """The mock upstream's port, while it runs."""
    port = free_port()
    with running("mock", [sys.executable, "-m", "bench.mock", str(port)], port):
        yield port


@contextmanager
def standing(peer: Peer, upstream: int) -> Iterator[Standing]:
    """The peer, while it runs."""
    port = free_port()
    start = peer.start(WORK / f"{peer.name}-run", port, upstream)
    with running(peer.name, start.command, port, env=start.env) as process:
        yield Standing(peer, process.pid, port, upstream)


@contextmanager
def all_standing(peers: Sequence[Peer], upstream: int) -> Iterator[list[Standing]]:
    """Every peer at once, so that repeats can take turns and a drift of the machine meets all alike."""
    with ExitStack() as stack:
        yield [stack.enter_context(standing(peer, upstream)) for peer in peers]
