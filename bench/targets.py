"""The promises about speed (requirements N1 to N6, X2, X4 and D4), each judged on the figures of one run."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.answers import WAIT_SECONDS
from bench.figures import Figure, Results
from bench.shapes import CHAT, CHAT_OVER_MESSAGES, MESSAGES_OVER_CHAT
from bench.topics import cpu, footprint, growth, latency, tools, workers
from bench.units import amount, seconds, times

US = "toolgate"
WHOLE = f"request, {CHAT}"
CHUNK = "chunk of 1,000 in one burst"
MEGABYTE = 1_000_000


class Verdict(NamedTuple):
    """A promise, what was found, and whether the medians keep it; None when the run did not measure it.

    It is `narrow` when single samples lie on both sides of the limit: another run may judge otherwise.
    """

    id: str
    promise: str
    found: str
    kept: bool | None
    narrow: bool = False

    @property
    def word(self) -> str:
        """The judgement in a word or two."""
        if self.kept is None:
            return "—"
        return ("kept" if self.kept else "missed") + (", narrowly" if self.narrow else "")


def verdicts(results: Results) -> Iterator[Verdict]:
    """Every promise in order."""
    yield _against(results, "at most 1/40 of LiteLLM's CPU per whole request", "litellm", 1 / 40)
    yield _against(results, "at most 1/8 of Portkey's CPU per whole request", "portkey", 1 / 8)
    yield _against(results, "at most 15 × nginx's CPU per whole request", "nginx", 15)
    for route in (MESSAGES_OVER_CHAT, CHAT_OVER_MESSAGES):
        figure = results.find(cpu.NAME, f"{CHUNK}, {route}", US)
        yield _below("N2", f"at most 20 µs of CPU per translated chunk, {route}", figure, 20e-6)
    yield from _linear(results)
    for mark, limit in (("p50", 1e-3), ("p99", 5e-3)):
        for route in latency.ROUTES:
            figure = results.find(latency.NAME, latency.line(mark, route), US)
            yield _below("N3", f"added latency {mark} under {limit * 1e3:g} ms at half load, {route}", figure, limit)
    figure = results.find(footprint.NAME, footprint.OPEN, US)
    yield _below("N4", "1,000 open streams in at most 300 MB", figure, 300 * MEGABYTE)
    figure = results.find(footprint.NAME, footprint.START, US)
    yield _below("N5", "cold start to the first answer under 1 s", figure, 1)
    figure = results.find(footprint.NAME, footprint.IDLE, US)
    yield _below("N5", "memory at rest under 80 MB", figure, 80 * MEGABYTE)
    for line in tools.stock.PROMISED:
        figure = results.find(tools.NAME, line, US)
        yield _below("N6", f"under 10 ms of CPU: {line}", figure, 10e-3)
    yield from _rounds(results)
    yield from _first_texts(results)
    yield _second_worker(results)


def _against(results: Results, promise: str, peer: str, limit: float) -> Verdict:
    ours, theirs = (results.find(cpu.NAME, WHOLE, name) for name in (US, peer))
    if ours is None or theirs is None:
        return Verdict("N1", promise, "not measured", None)
    ratio = ours.median / theirs.median
    found = f"1/{1 / ratio:.1f}" if ratio < 1 else times(ratio)
    kept = ratio <= limit and not ours.failures
    turns = [mine / other for mine, other in zip(ours.samples, theirs.samples, strict=False)]
    return Verdict("N1", promise, f"{found} ({amount(ours)} against {amount(theirs)})", kept, _narrow(turns, limit))


def _below(mark: str, promise: str, figure: Figure | None, limit: float) -> Verdict:
    if figure is None:
        return Verdict(mark, promise, "not measured", None)
    wrong = f", {sum(figure.failures.values())} wrong answers" if figure.failures else ""
    kept = figure.median <= limit and not figure.failures
    return Verdict(mark, promise, amount(figure) + wrong, kept, _narrow(figure.samples, limit))


def _narrow(samples: Sequence[float], limit: float) -> bool:
    return min(samples) <= limit < max(samples)


def _rounds(results: Results) -> Iterator[Verdict]:
    for pair in tools.rounds.PAIRS:
        for line in pair.lines[2:]:
            figure = results.find(tools.NAME, line, US)
            yield _below("X2", f"under 1 ms of CPU: {line}", figure, 1e-3)


def _first_texts(results: Results) -> Iterator[Verdict]:
    for route in tools.first_text.ROUTES:
        without = results.find(tools.NAME, tools.first_text.line(tools.first_text.WITHOUT, route), US)
        for what in tools.first_text.WITH:
            line = tools.first_text.line(what, route)
            yield _later(f"at most 1 ms later than without: {line}", results.find(tools.NAME, line, US), without, 1e-3)
    line = tools.first_text.line(tools.first_text.WAITING, CHAT)
    figure = results.find(tools.NAME, line, US)
    yield _below("X4", f"sent before the tool has ended: {line}", figure, WAIT_SECONDS / 2)


def _later(promise: str, figure: Figure | None, other: Figure | None, limit: float) -> Verdict:
    if figure is None or other is None:
        return Verdict("X4", promise, "not measured", None)
    later = [mine - theirs for mine, theirs in zip(figure.samples, other.samples, strict=True)]
    ratio = f"{times(figure.median / other.median)}: {amount(figure)} against {amount(other)}"
    found = f"{seconds(statistics.median(later))} ({ratio})"
    kept = statistics.median(later) <= limit and not figure.failures
    return Verdict("X4", promise, found, kept, _narrow(later, limit))


def _second_worker(results: Results) -> Verdict:
    promise = "two workers serve at least 1.7 × the streams of one"
    one, two = [results.find(workers.NAME, workers.wall(count), US) for count in workers.COUNTS]
    if one is None or two is None:
        return Verdict("D4", promise, "not measured", None)
    ratio, cores = one.median / two.median, results.machine.cores
    if cores < workers.CORES:
        found = f"{times(ratio)}, on {cores} cores that the load generator and the mock use, too: too few to tell"
        return Verdict("D4", promise, found, None)
    return Verdict("D4", promise, times(ratio), ratio >= 1.7)


def _linear(results: Results) -> Iterator[Verdict]:
    for series in growth.SERIES:
        promise = f"cost linear in {series.what}, {series.route}"
        line = growth.fit(results, series, US)
        if line is None:
            yield Verdict("N2", promise, "not measured", None)
            continue
        last, before = series.sizes[-1], series.sizes[-2]
        found = f"{line.each * 1e6:.1f} µs each; from {before:,} to {last:,} {times(line.bend)} the slope before"
        yield Verdict("N2", promise, found, line.straight)
