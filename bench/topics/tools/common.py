"""What the parts share: the services whose operations are tools, and figures of CPU time beyond that of another job."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench.answers import WAIT_PATH
from bench.field import Cost, Field, Standing, cost, warm
from bench.figures import Figure
from bench.load import Job, why_missing
from bench.sampling import sized
from bench.shapes import Route, Shape

NAME = "tools"
US = "toolgate"
# With this header nothing is passed on as it came: a Chat request over a Chat upstream is translated like any other.
TRANSLATED = {"x-toolgate-arguments": "whole"}


def service(operations: int, *, areas: int = 1) -> dict[str, Any]:
    """An OpenAPI document with so many operations, each of which says `lorem` once; the first is the mock's `wait`."""
    paths = {WAIT_PATH: {"get": {"operationId": "wait", "summary": "Waits lorem a moment."}}}
    for number in range(1, operations):
        paths[f"/items/{number}/{{id}}"] = {"get": _operation(number, areas)}
    return {"openapi": "3.1.0", "info": {"title": "bench", "version": "1"}, "paths": paths}


def _operation(number: int, areas: int) -> dict[str, Any]:
    return {
        "operationId": f"item_{number}",
        "summary": f"Reads lorem item {number} of the stock, with its price, its place and how many are left.",
        "tags": [f"area{number % areas}"],
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Which one."},
            {"name": "depth", "in": "query", "schema": {"type": "integer", "minimum": 0}, "description": "How deep."},
            {"name": "fields", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
        ],
    }


def job(server: Standing, route: Route, shapes: Sequence[Shape]) -> Job:
    """The job of sending these shapes in turn; until it is sized it does so with each at least once."""
    count = max(10, len(shapes))
    jobs = [found for shape in shapes if (found := server.job(route, shape, count)) is not None]
    headers = {**jobs[0].headers, **TRANSLATED}
    return msgspec.structs.replace(jobs[0], headers=headers, others=tuple(one.body for one in jobs[1:]))


def costs(field: Field, server: Standing, jobs: Mapping[str, Job]) -> dict[str, list[Cost]]:
    """What each job costs, taken in turns, after each has been sized and the server warmed for it."""
    fitted = {name: sized(todo, cost(server, todo), field.pace) for name, todo in jobs.items()}
    for todo in fitted.values():
        warm(server, todo, field.pace.cpu_budget)
    turns = [{name: cost(server, todo) for name, todo in fitted.items()} for _ in range(field.pace.repeats)]
    return {name: [turn[name] for turn in turns] for name in jobs}


def figure(line: str, samples: Sequence[float], found: Sequence[Cost]) -> Figure:
    """The samples that were made of what was found."""
    failures: Counter[str] = Counter()
    for one in found:
        failures.update(one.outcome.failures)
    right = all(one.outcome.ok for one in found)
    answers = sum(one.outcome.ok for one in found)
    absent = "" if right else why_missing(one.outcome for one in found)
    return Figure(NAME, line, US, "s", tuple(samples) if right else (), answers, dict(failures), absent)


def wanted(field: Field, lines: Sequence[str]) -> Iterator[str]:
    """Those of the lines that the run is to measure."""
    return (line for line in lines if field.wants(NAME, line))
