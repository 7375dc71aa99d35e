"""What a second worker brings: streams in the same time, and what each of them costs.

Two workers can only serve more where there are processors for them: the load generator and the mock need one each, so a
machine with fewer than four cores shows what they cost, not what they bring.
"""

from collections.abc import Iterator

from bench.field import Field, Standing, cost, standing, warm
from bench.figures import Figure
from bench.load import Job, Outcome, why_missing
from bench.peers.toolgate import Toolgate
from bench.shapes import MESSAGES_OVER_CHAT, Shape

NAME = "workers"
TITLE = "Several workers"
US = "toolgate"

COUNTS = (1, 2)
CORES = 4
"""Below which nothing can be said of what a second worker brings."""

SHAPE = Shape("mock-chunks-100", stream=True)
CONNECTIONS = 64
STREAMS = 400
WARM = 3.0


def wall(workers: int) -> str:
    """The table line of the time between two ends of streams."""
    return f"time per stream under full load, {_named(workers)}"


def spent(workers: int) -> str:
    """The table line of what a stream costs all processes of the server together."""
    return f"CPU per stream under full load, {_named(workers)}"


def measure(field: Field) -> Iterator[Figure]:
    """As many streams at once as keep every worker busy, with one worker and with two, in turn."""
    wanted = [line for count in COUNTS for line in (wall(count), spent(count)) if field.wants(NAME, line)]
    if not wanted or not any(peer.name == US for peer in field.peers):
        return
    for count in COUNTS:
        with standing(Toolgate(workers=count), field.upstream, f"toolgate-workers-{count}") as server:
            job = server.job(MESSAGES_OVER_CHAT, SHAPE, STREAMS, CONNECTIONS)
            assert job is not None
            warm(server, job, WARM)
            yield from _figures(field, server, job, count)


def _figures(field: Field, server: Standing, job: Job, count: int) -> Iterator[Figure]:
    walls: list[float] = []
    costs: list[float] = []
    outcomes: list[Outcome] = []
    answers, failures = 0, dict[str, int]()
    for _ in range(field.pace.repeats):
        found = cost(server, job)
        answers += found.outcome.ok
        failures |= found.outcome.failures
        outcomes.append(found.outcome)
        if found.outcome.ok:
            walls.append(found.outcome.seconds / found.outcome.ok)
            costs.append(found.per_request)
    absent = "" if costs else why_missing(outcomes)
    yield Figure(NAME, wall(count), US, "s", tuple(walls), answers, failures, absent)
    yield Figure(NAME, spent(count), US, "s", tuple(costs), answers, failures, absent)


def _named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
