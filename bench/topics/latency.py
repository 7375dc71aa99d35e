"""Latency a server adds at half of what one core of it can serve, against the mock upstream alone."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bench.field import Field, Standing, cost
from bench.figures import Figure
from bench.load import Job, Outcome, why_missing
from bench.peers import Direct
from bench.processes import load
from bench.shapes import CHAT, MESSAGES_OVER_CHAT, Route, Shape

NAME = "latency"
TITLE = "Added latency at half load"

ROUTES = (CHAT, MESSAGES_OVER_CHAT)
SHARES = {"p50": 0.5, "p99": 0.99}
# A faster server is not driven faster: beyond this the load generator and the mock would be what is measured.
MOST_RATE = 1000.0


class Pair(NamedTuple):
    """One run through the server and one past it, at the same rate."""

    through: Outcome
    past: Outcome

    def added(self, share: float) -> float:
        """How much later that share of the answers had come."""
        return self.through.percentile(share) - self.past.percentile(share)


def line(mark: str, route: Route) -> str:
    """The table line of a percentile over a route."""
    return f"{mark}, {route}"


def measure(field: Field) -> Iterator[Figure]:
    """Whole requests on a fixed beat, each run beside one that goes straight to the mock."""
    for route in ROUTES:
        marks = [mark for mark in SHARES if field.wants(NAME, line(mark, route))]
        if not marks:
            continue
        for server in field.together():
            pairs = list(_pairs(field, server, route))
            for mark in marks:
                yield _figure(server, line(mark, route), SHARES[mark], pairs)


def _pairs(field: Field, server: Standing, route: Route) -> Iterator[Pair]:
    shape = Shape("mock")
    burst = server.job(route, shape, 100)
    if burst is None:
        return
    found = cost(server, burst)
    if not found.outcome.ok:
        yield Pair(found.outcome, found.outcome)
        return
    rate = min(MOST_RATE, 0.5 / found.per_request)
    count = max(50, round(rate * field.pace.latency_seconds))
    direct = Standing(Direct(), 0, field.upstream, field.upstream).job(CHAT, shape, count)
    through = server.job(route, shape, count)
    assert direct is not None
    assert through is not None
    for _ in range(max(2, field.pace.repeats - 2)):
        yield Pair(load(_paced(through, rate)), load(_paced(direct, rate)))


def _paced(job: Job, rate: float) -> Job:
    return msgspec.structs.replace(job, rate=rate)


def _figure(server: Standing, label: str, share: float, pairs: list[Pair]) -> Figure:
    if not pairs:
        return Figure(NAME, label, server.peer.name, absent="cannot")
    failures: Counter[str] = Counter()
    for pair in pairs:
        failures.update(pair.through.failures)
    samples = tuple(pair.added(share) for pair in pairs if pair.through.ok and pair.past.ok)
    answers = sum(pair.through.ok for pair in pairs)
    absent = "" if samples else why_missing(outcome for pair in pairs for outcome in pair)
    return Figure(NAME, label, server.peer.name, "s", samples, answers, dict(failures), absent)
