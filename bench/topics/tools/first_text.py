"""When the first text of a streamed answer reaches the client, on a server with nothing else to do.

The same words are asked for with and without the server's tools. `Chat → Chat` without them is passed on as it comes, which
is the fastest that this server can do.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bench.answers import WAIT_SECONDS
from bench.field import Field, Standing
from bench.figures import Figure
from bench.load import Outcome, percentile, why_missing
from bench.processes import load
from bench.shapes import CHAT, MESSAGES_OVER_CHAT, Route, Shape
from bench.topics.tools.common import NAME, US

ROUTES = (CHAT, MESSAGES_OVER_CHAT)
OFFERED = 128
EVERY = ("clock", "mock_*")  # the clock, and a service that is one operation short
REQUESTS, FEW = 100, 3
HASTY = "answered before its tool can have ended"

WITHOUT = "first text, no server tools"
WITH = {
    "first text, a server tool offered": Shape("mock-chunks-10", stream=True, server_tools=("clock",)),
    f"first text, {OFFERED} server tools offered": Shape("mock-chunks-10", stream=True, server_tools=EVERY),
    "first text, then a call of a server tool": Shape("mock-rounds-1-chunks-10", stream=True, server_tools=("clock",)),
}
WAITING = f"first text, then a call that takes {WAIT_SECONDS * 1000:.0f} ms"


class Case(NamedTuple):
    """A line of the table: a shape over a route, and the seconds that its tool takes."""

    line: str
    route: Route
    shape: Shape
    tool_seconds: float = 0.0


def lines() -> list[str]:
    """All lines."""
    return [case.line for case in cases()]


def line(what: str, route: Route) -> str:
    """The table line of a kind of request over a route."""
    return f"{what}, {route}"


def cases() -> Iterator[Case]:
    """Every kind over every route; the slow tool over one."""
    shapes = {WITHOUT: Shape("mock-chunks-10", stream=True), **WITH}
    for route in ROUTES:
        yield from (Case(line(what, route), route, shape) for what, shape in shapes.items())
    shape = Shape("mock-rounds-1-chunks-10-waiting", stream=True, server_tools=("mock_wait",))
    yield Case(line(WAITING, CHAT), CHAT, shape, WAIT_SECONDS)


def measure(field: Field, server: Standing) -> Iterator[Figure]:
    """One request at a time, the cases in turns."""
    chosen = [case for case in cases() if field.wants(NAME, case.line)]
    for case in chosen:
        _outcome_of(server, case)
    turns = [[_outcome_of(server, case) for case in chosen] for _ in range(field.pace.repeats)]
    for at, case in enumerate(chosen):
        yield _figure(case, [turn[at] for turn in turns])


def _outcome_of(server: Standing, case: Case) -> Outcome:
    job = server.job(case.route, case.shape, FEW if case.tool_seconds else REQUESTS, connections=1)
    assert job is not None
    return load(job)


def _figure(case: Case, response: list[Outcome]) -> Figure:
    failures: Counter[str] = Counter()
    for outcome in response:
        failures.update(outcome.failures)
        if hasty := sum(seconds < case.tool_seconds for seconds in outcome.latencies):
            failures[HASTY] += hasty
    samples = tuple(percentile(outcome.first, 0.5) for outcome in response if outcome.first)
    answers = sum(outcome.ok for outcome in response)
    absent = "" if samples else why_missing(response)
    return Figure(NAME, case.line, US, "s", samples, answers, dict(failures), absent)
