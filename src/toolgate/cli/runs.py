"""`toolgate runs`: list the runs of a running server, show and follow their timelines, cancel and fork them."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolgate.cli.api_client import ApiCallFailed, Key, Url, call_api, encode_segment, fail, plain
from toolgate.cli.paging import id_of, list_pages
from toolgate.cli.printing import TextTable, cell_text, print_records, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import format_milliseconds, format_moment, parse_moment

# Characters of arguments, results and texts that `show` prints unless it is asked for all.
SHORT = 300

# Characters of an id that a table shows; they are enough for the other commands.
SHORT_ID = 8

# In the other states a run goes on, and its time is counted until now.
_ENDED = ("completed", "incomplete", "failed", "cancelled", "parked")
# The columns that a program gets.
FIELDS = (
    *("created", "id", "key", "model", "state", "kind", "steps", "calls", "tools", "input_tokens", "output_tokens"),
    *("cost", "started", "ended", "error"),
)

app = typer.Typer(
    help="List the runs of a running server, follow, cancel and fork them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Id = Annotated[str, typer.Argument(help="The id of the run, or its first characters.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


@app.callback()
def listed(
    context: typer.Context,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only runs in this state: queued, running, waiting, completed, incomplete, failed, cancelled, parked."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only runs of this key; needs the scope admin.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since then: 30m, 2h, 7d, a day or a time.")] = None,
    until: Annotated[str | None, typer.Option(help="Only before then.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of runs, newest first.", min=1)] = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List runs, newest first: requests with server tools, and background responses."""
    if context.invoked_subcommand is not None:
        return
    moments = {"since": parse_moment(since), "until": parse_moment(until)}
    rows, more = list_pages(url, key, "/v1/runs", {"state": state, "model": model, "key": owner, **moments}, limit)
    print_records(rows, more, FIELDS, _runs_table, noun="runs", as_json=as_json)


@app.command()
def show(
    id: Id,
    whole: Annotated[bool, typer.Option("--all", help="Print long arguments, results and texts whole.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show a run with its timeline: every step and every call, when it began and how long it took."""
    run = call_api(url, key, "GET", _path(url, key, id))
    if as_json:
        typer.echo(json.dumps(run))
        return
    counts = ", ".join([_counted(run.get("steps") or 0, "step"), _counted(run.get("calls") or 0, "call")])
    tokens = f"{run.get('input_tokens') or 0} tokens in, {run.get('output_tokens') or 0} out"
    cost = f", cost {run['cost']:g}" if isinstance(run.get("cost"), int | float) and run["cost"] else ""
    lines = [
        f"{run.get('id')}: {run.get('state')}",
        f"  {run.get('kind')}, {run.get('model')}, key {run.get('key')}, {format_moment(run.get('created'))}",
        f"  {counts}, {tokens}{cost}" + (f", {took}" if (took := _took(run)) else ""),
    ]
    match run.get("forked_from"):
        case {"run": origin, "step": step}:
            lines.append(f"  forked from {origin} after step {step}")
    if run.get("error"):
        lines.append(f"  error: {run['error']}")
    for line in lines:
        typer.echo(plain(line))
    for entry in _timeline(run):
        for line in _entry_lines(entry, run, None if whole else SHORT):
            typer.echo(plain(line))


@app.command()
def follow(id: Id, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Print each step and call of a run when it begins and when it ends, until the run ends or Ctrl-C.

    The status is 0 if the run completes.
    """
    _follow(url, key, _path(url, key, id))


@app.command()
def cancel(id: Id, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Cancel a run. A tool that is running is stopped."""
    run = call_api(url, key, "POST", f"{_path(url, key, id)}/cancel", {})
    typer.echo(plain(f"{run.get('id')}: {run.get('state')}"))


@app.command()
def fork(
    id: Id,
    step: Annotated[int, typer.Option(help="Go on after this step; 0 begins anew.", min=0)],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Another model.")] = None,
    message: Annotated[str | None, typer.Option(help="Another text for the user's message.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Another system prompt.")] = None,
    result: Annotated[
        list[str] | None,
        typer.Option(help="Another result of a call, as CALL=TEXT; may be given several times."),
    ] = None,
    then_follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the new run.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Start a new run from a step of another one, with another model, message or result.

    The steps up to that one are copied, and their tools are not run again. The id of the new run is printed.
    """
    changes = {"model": model, "message": message, "instructions": instructions}
    body: dict[str, Any] = {"step": step} | {name: value for name, value in changes.items() if value is not None}
    for given in result or ():
        call, equals, text = given.partition("=")
        if not equals or not call:
            fail("A result is written as CALL=TEXT; `toolgate runs show` prints the ids of calls.")
        body.setdefault("results", {})[call] = text
    run = call_api(url, key, "POST", f"{_path(url, key, id)}/fork", body)
    typer.echo(plain(str(run.get("id"))))
    if then_follow:
        _follow(url, key, f"/v1/runs/{encode_segment(str(run.get('id')))}")


def _path(url: str, key: str | None, id: str) -> str:
    return f"/v1/runs/{encode_segment(id_of(url, key, '/v1/runs', id, 'runs', 'resp_'))}"


def _follow(url: str, key: str | None, path: str) -> None:
    """Print what changes; the stream repeats the whole run with every change."""
    from toolgate.cli.event_stream import stream_events

    shown: dict[int, Any] = {}
    state = None
    try:
        for event in stream_events(url, key, "GET", f"{path}?stream=true"):
            if event.name != "run":
                continue
            # By place: a step or call that is made again has the same name, and a place of its own.
            for place, entry in enumerate(_timeline(event.value)):
                if shown.get(place) != entry.get("outcome"):
                    shown[place] = entry.get("outcome")
                    for line in _entry_lines(entry, event.value, SHORT):
                        typer.echo(plain(line))
            if event.value.get("state") != state:
                state = event.value.get("state")
                typer.echo(plain(f"run {event.value.get('id')} is {state}"), err=True)
    except ApiCallFailed as error:
        fail(str(error))
    except KeyboardInterrupt:
        typer.echo("The run goes on; `toolgate runs cancel` stops it.", err=True)
        raise typer.Exit(130) from None
    if state != "completed":
        raise typer.Exit(1)


def _runs_table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Table the runs for a person; columns that say nothing are left out."""
    several = len({row.get("key") for row in rows}) > 1
    cells: dict[str, list[Any]] = {
        "when": [format_moment(row.get("created")) for row in rows],
        # All ids begin with `resp_`, which may be left out.
        "id": [str(row.get("id")).removeprefix("resp_")[:SHORT_ID] for row in rows],
        "key": [row.get("key") for row in rows] if several else [],
        "model": [row.get("model") for row in rows],
        "state": [row.get("state") for row in rows],
        "steps": [row.get("steps") for row in rows],
        "calls": [row.get("calls") for row in rows],
        "took": [_took(row) for row in rows],
        "cost": [f"{row['cost']:g}" if row.get("cost") else "" for row in rows],
        "tools": [cell_text(row.get("tools")) for row in rows],
    }
    shown = {name: column for name, column in cells.items() if any(column)}
    return text_table("Runs", shown, zip(*shown.values(), strict=True), ("when", "id", "status", "state"))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _timeline(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = run.get("timeline")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _entry_lines(entry: Mapping[str, Any], run: Mapping[str, Any], most: int | None) -> list[str]:
    """Describe a step or a call: when it began within the run, what it is, how it ended, and its texts."""
    elapsed = _milliseconds(run.get("started") or run.get("created"), entry.get("started"))
    offset = f"+{max(0.0, elapsed) / 1000:.2f} s" if elapsed is not None else ""
    head = f"{offset:>9}  "
    outcome = ", ".join([f"{entry.get('outcome')}", *_durations(entry)])
    if entry.get("type") == "step":
        written = entry.get("output_tokens")
        tokens = f", {entry.get('input_tokens')} + {written} tokens" if written else ""
        lines = [f"{head}step {entry.get('step')}, {entry.get('model')}: {outcome}{tokens}"]
        return lines + _indented(entry.get("text"), 11, most)
    source = f" of {entry['source']}" if entry.get("source") else ""
    lines = [f"{head}  call {entry.get('tool')}{source}, {entry.get('call')}: {outcome}"]
    if entry.get("outcome") == "waiting" and entry.get("approval"):
        lines.append(f"{' ' * 13}To answer: toolgate approvals approve {entry['approval']}, or deny")
    return lines + _indented(entry.get("arguments"), 13, most) + _indented(entry.get("result"), 13, most, "= ")


def _durations(entry: Mapping[str, Any]) -> list[str]:
    """Return how long a step or a tool ran, and how long the call waited for a person before."""
    # With an approval, `started` is when the person was asked, and `tool_started` when the tool was run.
    started, ended, run_from = entry.get("started"), entry.get("ended"), entry.get("tool_started")
    if not entry.get("approval"):
        took = format_milliseconds(_milliseconds(started if run_from is None else run_from, ended))
        return [took] if took else []
    took = format_milliseconds(_milliseconds(run_from, ended))
    waited = format_milliseconds(_milliseconds(started, ended if run_from is None else run_from))
    return [*([took] if took else []), *([f"after {waited} of waiting"] if waited else [])]


def _indented(text: Any, indent: int, most: int | None, mark: str = "") -> list[str]:
    if not isinstance(text, str) or not text:
        return []
    # With `most` None, the slice below takes the whole text.
    cut = f" … ({len(text) - most} more characters: --all)" if most is not None and len(text) > most else ""
    return [f"{' ' * indent}{mark}{line}" for line in (text[:most] + cut).splitlines()]


def _milliseconds(start: Any, end: Any) -> float | None:
    return (end - start) * 1000 if isinstance(start, int | float) and isinstance(end, int | float) else None


def _took(run: Mapping[str, Any]) -> str:
    if not isinstance(started := run.get("started"), int | float):
        return ""
    ended = run.get("ended") if run.get("state") in _ENDED else time.time()
    return format_milliseconds(_milliseconds(started, ended))
