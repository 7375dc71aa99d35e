"""Writes the results into docs/performance.md, between its markers; knows only figures, not how they came about."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.figures import Figure, Results
from bench.peers import PEERS
from bench.processes import ROOT
from bench.targets import US, Verdict, verdicts
from bench.topics import TOPICS, growth
from bench.units import amount, seconds, spread, times

PAGE = ROOT / "docs" / "performance.md"
PLOT = PAGE.with_suffix(".svg")
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write(results: Results, page: Path = PAGE) -> None:
    """Replaces what stands between the markers; the prose around them stays."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}")


def render(results: Results) -> str:
    """The machine, the promises and a table per topic, in Markdown."""
    parts = ["\n".join(_setting(results)), "## Promises", "\n".join(_promises(verdicts(results)))]
    parts.append(f"![CPU time per request and per chunk, and as requests grow]({PLOT.name})")
    for name, topic in TOPICS.items():
        parts += [f"## {topic.title}", "\n".join(_table(results, name))]
        if name == growth.NAME:
            parts += ["### Is it linear?", "\n".join(_lines(results))]
    if wrong := list(_wrong(results)):
        parts += ["## Wrong answers", "\n".join(wrong)]
    return "\n\n".join(parts)


def _setting(results: Results) -> Iterator[str]:
    machine = results.machine
    yield f"Taken {results.taken}, a {results.mode} run, on {machine.cores} cores of {machine.processor},"
    yield f"{machine.memory_bytes / 1e9:.0f} GB of memory, {machine.system}, {machine.python}."
    if machine.busy:
        yield f"The machine was busy with other work (load {machine.load:g}): wall-clock figures, which are cold start"
        yield "and latency, say more about that than about the servers."
    yield ""
    for name, peer in PEERS.items():
        if name in results.absent:
            yield f"- {peer.title}: not measured: {results.absent[name]}"
        elif name in results.versions:
            yield f"- {peer.title} {results.versions[name]}"


def _promises(found: Iterable[Verdict]) -> Iterator[str]:
    yield "| | promise | found | |"
    yield "|---|---|---|---|"
    for verdict in found:
        mark = f"**{verdict.word}**" if verdict.kept is False else verdict.word
        yield f"| {verdict.id} | {verdict.promise} | {verdict.found} | {mark} |"


def _table(results: Results, topic: str) -> Iterator[str]:
    names = [name for name in PEERS if name in results.versions]
    yield "| | " + " | ".join(PEERS[name].title for name in names) + " |"
    yield "|---|" + "---:|" * len(names)
    found = {(figure.line, figure.peer): figure for figure in results.figures if figure.topic == topic}
    for line in dict.fromkeys(line for line, _ in found):
        ours = found.get((line, US))
        cells = (_cell(found.get((line, name)), ours) for name in names)
        yield f"| {line} | " + " | ".join(cells) + " |"


def _cell(figure: Figure | None, ours: Figure | None) -> str:
    """The median with its spread, and for others how many times ours it is."""
    if figure is None:
        return "—"
    if not figure.samples:
        return figure.absent
    text = amount(figure) + spread(figure)
    if ours is not None and ours is not figure and ours.samples and min(ours.median, figure.median) > 0:
        text += f" ({times(figure.median / ours.median)})"
    return f"{text} ⚠" if figure.failures else text


def _lines(results: Results) -> Iterator[str]:
    yield "| | fixed | each | last slope against the one before |"
    yield "|---|---:|---:|---:|"
    for series in growth.SERIES:
        for name, peer in PEERS.items():
            line = growth.fit(results, series, name)
            if line is not None:
                label = f"{peer.title}, {series.what}, {series.route}"
                yield f"| {label} | {seconds(line.fixed)} | {seconds(line.each)} | {times(line.bend)} |"


def _wrong(results: Results) -> Iterator[str]:
    for figure in results.figures:
        for reason, count in figure.failures.items():
            output = reason.replace("\n", " ").replace("`", "'")[:120]
            yield f"- {PEERS[figure.peer].title}, {figure.line}: {count} × `{output}`, {figure.answers} right"
