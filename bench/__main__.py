"""`python -m bench`: measures, keeps the figures, prints the promises, and after a full run rewrites the page."""

import argparse
import resource
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import figures, machine, plot, report
from bench.field import FULL, QUICK, Field, Pace, mock
from bench.figures import Figure, Results
from bench.peers import PEERS, Missing, Peer
from bench.peers.before import Before
from bench.processes import WORK
from bench.selfcheck import check
from bench.targets import verdicts
from bench.topics import TOPICS
from bench.units import amount, spread

RESULTS = WORK / "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark as the command line asks; 1 if a promise measured was missed."""
    options = _options(arguments)
    console = Console()
    WORK.mkdir(exist_ok=True)
    if options.before:
        PEERS["before"] = Before(options.before)
        print_change(_run(["toolgate", "before"], _filter(options.cases), _pace(options), console), console)
        return 0
    if options.render:
        results = figures.read(RESULTS)
    else:
        names = options.only.split(",") if options.only else list(PEERS)
        results = _run(names, _filter(options.cases), _pace(options), console)
        figures.save(results, RESULTS)
    whole = not (options.quick or options.only or options.cases)
    if options.render or options.write or whole:
        report.write(results)
        report.PLOT.write_text(plot.draw(results))
        console.print(f"wrote {report.PAGE.name} and {report.PLOT.name}")
    return _print_promises(results, console)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about three minutes, with few repeats")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(PEERS)}")
    lines = f"topics ({', '.join(TOPICS)}) or beginnings of table lines"
    parser.add_argument("--cases", nargs="+", default=[], metavar="TEXT", help=lines)
    parser.add_argument(
        "--before", default="", metavar="COMMIT", help="measure beside Toolgate as it was, and nobody else"
    )
    parser.add_argument("--write", action="store_true", help="rewrite the page after a partial run, too")
    parser.add_argument("--render", action="store_true", help="measure nothing; rewrite the page from the last run")
    options = parser.parse_args(arguments)
    for name in filter(None, options.only.split(",")):
        if name not in PEERS:
            parser.error(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    return options


def _pace(options: argparse.Namespace) -> Pace:
    return QUICK if options.quick else FULL


def _filter(wanted: Sequence[str]) -> Callable[[str, str], bool]:
    return lambda topic, line: not wanted or any(text == topic or line.startswith(text) for text in wanted)


def _run(names: Sequence[str], wants: Callable[[str, str], bool], pace: Pace, console: Console) -> Results:
    _raise_file_limit()
    here = machine.describe()
    found: list[Figure] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with mock() as upstream, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("checking the load generator")
        check(upstream)
        progress.update(task, description="installing what is missing")
        ready, absent = _prepare(names)
        field = Field(ready, upstream, pace, wants)
        try:
            for name, topic in TOPICS.items():
                progress.update(task, description=f"{topic.title}: {', '.join(peer.name for peer in field.peers)}")
                for figure in topic.measure(field):
                    found.append(figure)
                    if figure.samples or figure.failures:
                        progress.console.print(_line(name, figure), highlight=False, soft_wrap=True)
        finally:
            field.close()
    versions = {peer.name: peer.version() for peer in ready if peer.name not in field.absent}
    taken = datetime.now(UTC).strftime("%Y-%m-%d")
    return Results(taken, pace.name, here, versions, {**absent, **field.absent}, tuple(found))


def _prepare(names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    ready: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            PEERS[name].prepare()
        except Missing as reason:
            absent[name] = str(reason)
        else:
            ready.append(PEERS[name])
    return ready, absent


def _raise_file_limit() -> None:
    """A thousand streams need two thousand sockets in each server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _line(topic: str, figure: Figure) -> str:
    value = amount(figure) + spread(figure) if figure.samples else figure.absent
    wrong = f"  [red]{sum(figure.failures.values())} wrong[/red]" if figure.failures else ""
    return f"{topic:10} {PEERS[figure.peer].title:9} {figure.line:62} {value}{wrong}"


def print_change(results: Results, console: Console) -> None:
    """Prints each figure beside that of the commit before."""
    table = Table("", f"at {results.versions.get('before', '')}", "here", "here / before")
    for now in results.figures:
        if now.peer != "toolgate":
            continue
        before = next((one for one in results.figures if _is_before(one, now)), None)
        found = [amount(one) if one.samples else one.absent for one in (before, now) if one is not None]
        if before is not None and before.samples and now.samples:
            table.add_row(now.line, *found, f"{now.median / before.median:.2f}")
        elif before is not None:
            table.add_row(now.line, *found, "missing")
    console.print(table)
    _print_absent(results, console)


def _is_before(figure: Figure, now: Figure) -> bool:
    return (figure.topic, figure.line, figure.peer) == (now.topic, now.line, "before")


def _print_promises(results: Results, console: Console) -> int:
    table = Table("", "promise", "found", "")
    missed = False
    for verdict in verdicts(results):
        colour = {True: "green", False: "red", None: "dim"}[verdict.kept]
        table.add_row(verdict.id, verdict.promise, verdict.found, f"[{colour}]{verdict.word}[/{colour}]")
        missed |= verdict.kept is False
    console.print(table)
    _print_absent(results, console)
    return int(missed)


def _print_absent(results: Results, console: Console) -> None:
    for name, reason in results.absent.items():
        console.print(f"{PEERS[name].title}: not measured: {reason}")


if __name__ == "__main__":
    sys.exit(main())
