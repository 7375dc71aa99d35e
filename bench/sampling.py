"""Samples of CPU cost, taken from all peers in turns; knows no topic's lines."""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from bench.answers import pause
from bench.field import CONNECTIONS, Cost, Field, Pace, Standing, cost, warm
from bench.figures import Figure
from bench.load import Job, why_missing
from bench.shapes import Route, Shape

MOST_REQUESTS = 4000
MOST_PACED = 60
FEWEST = 3  # samples taken even if each is dear
DEAR = 1.0  # CPU seconds


class Case(NamedTuple):
    """One line of a table: a shape sent over a route, its cost divided by requests or by chunks."""

    topic: str
    line: str
    route: Route
    shape: Shape
    per_chunk: bool = False

    @property
    def units(self) -> int:
        """What a request's cost is divided by."""
        return self.shape.words if self.per_chunk else 1


class Entrant(NamedTuple):
    """A server that can take the case, with the job sized for it."""

    server: Standing
    job: Job


def sample(field: Field, case: Case, spared: Mapping[str, str] = MappingProxyType({})) -> Iterator[Figure]:
    """A figure for every peer: samples where it can take the case, else why not; `spared` names who is not asked."""
    entrants: list[Entrant] = []
    for server in field.together():
        if server.peer.name in spared:
            yield _absent(case, server, spared[server.peer.name])
            continue
        fit = _fit(server, case, field.pace)
        if isinstance(fit, Entrant):
            entrants.append(fit)
        else:
            yield fit
    taken: list[list[Cost]] = [[] for _ in entrants]
    for turn in range(field.pace.repeats):
        for entrant, costs in zip(entrants, taken, strict=True):
            if turn >= FEWEST and costs[-1].seconds > DEAR:
                continue
            costs.append(cost(entrant.server, entrant.job))
    for entrant, costs in zip(entrants, taken, strict=True):
        yield _figure(case, entrant.server, costs)


def _fit(server: Standing, case: Case, pace: Pace) -> Entrant | Figure:
    """Sizes the job so that one sample takes the pace's CPU budget, and warms the server for it."""
    first = server.job(case.route, case.shape, max(1, min(10, 2000 // max(case.shape.words, case.shape.history))))
    if first is None:
        return _absent(case, server, "cannot")
    found = cost(server, first)
    if not found.outcome.ok:
        return _figure(case, server, [found])
    job = sized(first, found, pace, MOST_PACED if pause(case.shape.model) else MOST_REQUESTS)
    if job.requests > 1:
        warm(server, job, 4 * pace.cpu_budget)
    return Entrant(server, job)


def sized(job: Job, found: Cost, pace: Pace, most: int = MOST_REQUESTS) -> Job:
    """The job with as many requests as take the pace's CPU budget; of several bodies each is sent equally often."""
    if not found.outcome.ok:
        return job
    kinds = 1 + len(job.others)
    count = max(1, min(most, round(pace.cpu_budget / max(found.per_request, 1e-6))))
    count += -count % kinds
    return msgspec.structs.replace(job, requests=count, connections=min(CONNECTIONS, count))


def _figure(case: Case, server: Standing, costs: list[Cost]) -> Figure:
    failures: Counter[str] = Counter()
    for found in costs:
        failures.update(found.outcome.failures)
    samples = tuple(found.per_request / case.units for found in costs if found.outcome.ok)
    answers = sum(found.outcome.ok for found in costs)
    absent = "" if samples else why_missing(found.outcome for found in costs)
    name = server.peer.name
    return Figure(case.topic, case.line, name, "s", samples, answers, dict(failures), absent)


def _absent(case: Case, server: Standing, reason: str) -> Figure:
    return Figure(case.topic, case.line, server.peer.name, absent=reason)
