"""How the cost of a request grows with the chunks of its answer and with the messages of its history."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.field import Field
from bench.figures import Figure, Results
from bench.sampling import Case, sample
from bench.shapes import CHAT, GROWING_CHUNKS, GROWING_HISTORY, MESSAGES_OVER_CHAT, Route, Shape

NAME = "growth"
TITLE = "CPU time as requests grow"

ROUTES = (CHAT, MESSAGES_OVER_CHAT)
DEAREST = 2.5  # CPU seconds of one request beyond which the next size is not measured for that peer
ALWAYS = ("toolgate", "nginx")


class Series(NamedTuple):
    """One quantity that grows, over one route."""

    what: str
    route: Route
    sizes: tuple[int, ...]

    def line(self, size: int) -> str:
        """The table line of one size."""
        return f"{size:,} {self.what if size > 1 else self.what.removesuffix('s')}, {self.route}"

    def case(self, size: int) -> Case:
        """The request of one size."""
        shape = Shape("mock", history=size)
        if self.what == "chunks":
            shape = Shape(f"mock-chunks-{size}", stream=True)
        return Case(NAME, self.line(size), self.route, shape)


SERIES = tuple(
    Series(what, route, sizes)
    for what, sizes in (("chunks", GROWING_CHUNKS), ("messages", GROWING_HISTORY))
    for route in ROUTES
)


class Line(NamedTuple):
    """A straight line through costs: fixed part, part per unit, and how the last slope compares with the one before."""

    fixed: float
    each: float
    bend: float

    @property
    def straight(self) -> bool:
        """Whether the cost grows no faster than the size; quadratic growth would bend it tenfold."""
        return self.bend <= 1.5


def measure(field: Field) -> Iterator[Figure]:
    """The sizes in ascending order; a peer that would take too long for the next is spared it."""
    for series in SERIES:
        spared = _spared(field)
        for size in series.sizes:
            if not field.wants(NAME, series.line(size)):
                continue
            for figure in sample(field, series.case(size), spared):
                if figure.samples and figure.median * 10 > DEAREST:
                    spared[figure.peer] = f"over {DEAREST:g} s a request"
                yield figure


def _spared(field: Field) -> dict[str, str]:
    """A quick run asks only ourselves and the floor how they grow."""
    if field.pace.thorough:
        return {}
    return {peer.name: "in a full run" for peer in field.peers if peer.name not in ALWAYS}


def fit(results: Results, series: Series, peer: str) -> Line | None:
    """The line through a peer's costs, if all sizes were measured."""
    found = [results.find(NAME, series.line(size), peer) for size in series.sizes]
    costs = [figure.median for figure in found if figure is not None]
    return straight_line(series.sizes, costs) if len(costs) == len(series.sizes) else None


def straight_line(sizes: Sequence[int], costs: Sequence[float]) -> Line:
    """Least squares weighted by 1/cost², so that small sizes count as much as large ones."""
    weights = [1 / cost**2 for cost in costs]
    mean_size = statistics.fmean(sizes, weights)
    mean_cost = statistics.fmean(costs, weights)
    above = sum(w * (n - mean_size) * (c - mean_cost) for w, n, c in zip(weights, sizes, costs, strict=True))
    each = above / sum(w * (n - mean_size) ** 2 for w, n in zip(weights, sizes, strict=True))
    slopes = [(costs[at] - costs[at - 1]) / (sizes[at] - sizes[at - 1]) for at in range(1, len(sizes))]
    bend = slopes[-1] / slopes[-2] if slopes[-2] > 0 else 1.0
    return Line(mean_cost - each * mean_size, each, bend)
