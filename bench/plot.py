"""Draws the results as one SVG: bars of CPU cost on a logarithmic scale, and lines of its growth."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from bench.figures import Results
from bench.peers import PEERS
from bench.shapes import CHAT, MESSAGES_OVER_CHAT
from bench.topics import cpu, growth
from bench.units import seconds

COLOURS = {"toolgate": "#1f6feb", "nginx": "#3fa34d", "portkey": "#d98e04", "litellm": "#c9372c"}
WIDTH, HEIGHT = 880, 640
STYLE = "font: 12px system-ui, sans-serif"


class Box(NamedTuple):
    """Where a panel's drawing area lies."""

    left: float
    top: float
    width: float
    height: float


class Scale(NamedTuple):
    """A logarithmic axis from `low` to `high` onto `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """The powers of ten within."""
        power = 10.0 ** math.ceil(math.log10(self.low) - 1e-9)
        while power <= self.high * 1.0001:
            yield power
            power *= 10


def draw(results: Results) -> str:
    """The whole picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{STYLE}" role="img">'
    parts = [head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    parts += _bars(results, Box(90, 50, 310, 200), "CPU per whole request", f"request, {CHAT}")
    chunk = f"chunk of 1,000 in one burst, {CHAT}"
    parts += _bars(results, Box(530, 50, 310, 200), "CPU per streamed chunk", chunk)
    chunks, messages = (series for series in growth.SERIES if series.route == CHAT)
    parts += _growth(results, Box(90, 350, 310, 220), chunks)
    parts += _growth(results, Box(530, 350, 310, 220), messages)
    return "\n".join([*parts, "</svg>", ""])


def _bars(results: Results, box: Box, title: str, line: str) -> Iterator[str]:
    found = {name: results.find(cpu.NAME, line, name) for name in PEERS}
    medians = {name: figure.median for name, figure in found.items() if figure is not None}
    yield _text(box.left, box.top - 22, f"{title}, same dialect", bold=True)
    if not medians:
        return
    scale = _around(list(medians.values()), box.left, box.left + box.width)
    yield from _vertical_grid(scale, box)
    step = box.height / len(medians)
    for at, (name, median) in enumerate(medians.items()):
        y, end = box.top + at * step + step * 0.2, scale(median)
        fill = COLOURS[name]
        yield f'<rect x="{box.left}" y="{y:.1f}" width="{end - box.left:.1f}" height="{step * 0.6:.1f}" fill="{fill}"/>'
        yield _text(box.left - 6, y + step * 0.3 + 4, PEERS[name].title, anchor="end")
        inside = end - box.left > box.width * 0.7
        at_x, anchor, colour = (end - 6, "end", "#ffffff") if inside else (end + 6, "start", "#24292f")
        yield _text(at_x, y + step * 0.3 + 4, seconds(median), anchor=anchor, colour=colour)


def _growth(results: Results, box: Box, series: growth.Series) -> Iterator[str]:
    yield _text(box.left, box.top - 22, f"CPU per request as {series.what} grow", bold=True)
    curves = {
        (name, route): _points(results, growth.Series(series.what, route, series.sizes), name)
        for name in PEERS
        for route in (CHAT, MESSAGES_OVER_CHAT)
    }
    values = [cost for points in curves.values() for _, cost in points]
    if not values:
        return
    across = Scale(series.sizes[0], series.sizes[-1], box.left, box.left + box.width)
    up = _around(values, box.top + box.height, box.top)
    yield from _vertical_grid(across, box, [f"{size:,}" for size in series.sizes])
    yield from _horizontal_grid(up, box)
    for (name, route), points in curves.items():
        if len(points) > 1:
            path = " ".join(f"{across(size):.1f},{up(cost):.1f}" for size, cost in points)
            dashed = "" if route == CHAT else ' stroke-dasharray="5 4"'
            yield f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dashed}/>'
    note = "solid: Chat → Chat; dashed: Anthropic → Chat"
    yield _text(box.left, box.top + box.height + 40, note, colour="#57606a")


def _points(results: Results, series: growth.Series, peer: str) -> list[tuple[int, float]]:
    found = [(size, results.find(growth.NAME, series.line(size), peer)) for size in series.sizes]
    return [(size, figure.median) for size, figure in found if figure is not None]


def _around(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale of whole decades that holds all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return Scale(10.0**low, 10.0 ** max(high, low + 1), start, end)


def _vertical_grid(scale: Scale, box: Box, labels: Sequence[str] | None = None) -> Iterator[str]:
    bottom = box.top + box.height
    for at, tick in enumerate(scale.ticks()):
        x = scale(tick)
        yield f'<line x1="{x:.1f}" y1="{box.top}" x2="{x:.1f}" y2="{bottom}" stroke="#d0d7de"/>'
        label = labels[at] if labels else seconds(tick).replace(".00", "").replace(".0", "")
        yield _text(x, bottom + 16, label, anchor="middle", colour="#57606a")


def _horizontal_grid(scale: Scale, box: Box) -> Iterator[str]:
    for tick in scale.ticks():
        y = scale(tick)
        yield f'<line x1="{box.left}" y1="{y:.1f}" x2="{box.left + box.width}" y2="{y:.1f}" stroke="#d0d7de"/>'
        label = seconds(tick).replace(".00", "").replace(".0", "")
        yield _text(box.left - 6, y + 4, label, anchor="end", colour="#57606a")


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#24292f", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
