"""`toolgate approvals`: see what waits for a person, and answer it. Speaks HTTP to a running server.

What the server shows is escaped already; it is printed as text all the same, whatever it holds.
"""

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import typer

from toolgate.cli.asking import HERE, Key, Url, ask, plain, stop
from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from rich.table import Table

SHORT = 300
"""Characters of the arguments that a list shows; `show` shows all."""

LISTED = 100
"""Questions that a list shows unless it is asked for more."""

_PAGE = 100
_COLUMNS = ("id", "tool", "source", "arguments", "question", "asked by", "expires in")

app = typer.Typer(
    help="See what waits for a person's approval, and answer it.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Id = Annotated[str, typer.Argument(help="The approval, as the list names it.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the model and the record.")]


class Level(StrEnum):
    """How far an approval goes."""

    once = "once"
    session = "session"
    workspace = "workspace"
    always = "always"


@app.callback()
def pending(
    context: typer.Context,
    caller: Annotated[str | None, typer.Option(help="Only what this key asks for.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    limit: Annotated[int, typer.Option(help="How many to list at most.", min=1)] = LISTED,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """List what waits for an answer: the longest waiting of each key, then the next of each."""
    if context.invoked_subcommand is None:
        listed, more = _listed(url, key, limit, caller=caller, tool=tool)
        print_table(_table(listed))
        if more:
            typer.echo("There are more: see --limit, --caller and --tool.", err=True)


@app.command()
def show(id: Id, url: Url = HERE, key: Key = None) -> None:
    """Show one approval, with all of its arguments."""
    print_table(_card(ask(url, key, "GET", _path(id))))


@app.command()
def approve(
    id: Id,
    level: Annotated[Level, typer.Option(help="How far the approval goes.")] = Level.once,
    edit: Annotated[
        str | None, typer.Option(help="Arguments to run it with instead, as JSON; `-` opens your editor on them.")
    ] = None,
    reason: Reason = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Let the call run."""
    said: dict[str, Any] = {"decision": "approve", "level": level.value}
    if edit is not None:
        text = _in_editor(ask(url, key, "GET", _path(id))["arguments"]) if edit == "-" else edit
        said["arguments"] = _object(text)
    _answered(ask(url, key, "POST", _path(id), _with_reason(said, reason)))


@app.command()
def deny(id: Id, reason: Reason = None, url: Url = HERE, key: Key = None) -> None:
    """Do not let the call run."""
    _answered(ask(url, key, "POST", _path(id), _with_reason({"decision": "deny"}, reason)))


@app.command()
def deny_all(
    run: Annotated[str | None, typer.Option(help="Only what this run asked for.")] = None,
    reason: Reason = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Deny everything that waits."""
    said = _with_reason({} if run is None else {"run": run}, reason)
    denied = ask(url, key, "POST", "/v1/approvals/deny_all", said)["denied"]
    typer.echo(f"Denied {len(denied)}.")


@app.command()
def watch(
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.01)] = 1.0,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Show what waits, and what is new as it comes, until interrupted."""
    seen: list[Mapping[str, Any]] | None = None
    try:
        while True:
            listed, _ = _listed(url, key, LISTED)
            if listed != seen:
                seen = listed
                print_table(_table(listed), anew=True)
            time.sleep(every)
    except KeyboardInterrupt:
        return


@app.command()
def grants(url: Url = HERE, key: Key = None) -> None:
    """List what was granted beyond one call."""
    listed, _ = _pages(url, key, "/v1/approvals/grants", {})
    columns = ("tool", "source", "level", "place", "caller", "granted_by")
    print_table(rows_table("Grants", columns, [[one.get(name) for name in columns] for one in listed]))


@app.command()
def reset(url: Url = HERE, key: Key = None) -> None:
    """Forget what was granted, so that it is asked about again."""
    forgotten = ask(url, key, "POST", "/v1/approvals/reset", {})["forgotten"]
    typer.echo(f"Forgot {forgotten} grants.")


def _listed(url: str, key: str | None, most: int, **wanted: str | None) -> tuple[list[Mapping[str, Any]], bool]:
    """What waits, callers taking turns, and whether there is more than was asked for."""
    said = {"state": "pending", "order": "fair", **{name: value for name, value in wanted.items() if value}}
    return _pages(url, key, "/v1/approvals", said, most)


def _pages(
    url: str, key: str | None, path: str, said: Mapping[str, str], most: int = 10_000
) -> tuple[list[Mapping[str, Any]], bool]:
    """A list, page by page."""
    listed: list[Mapping[str, Any]] = []
    while True:
        cursor = {"after": str(listed[-1]["id"])} if listed else {}
        page = ask(url, key, "GET", f"{path}?{urlencode({**said, **cursor, 'limit': min(_PAGE, most - len(listed))})}")
        listed += page["data"]
        if not page.get("has_more") or len(listed) >= most:
            return listed, bool(page.get("has_more"))


def _path(id: str) -> str:
    return f"/v1/approvals/{quote(id, safe='')}"


def _with_reason(said: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return said if reason is None else {**said, "reason": reason}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        stop(f"the arguments are not JSON: {error}")
    if not isinstance(value, dict):
        stop("the arguments must be a JSON object")
    return value


def _in_editor(arguments: str) -> str:
    """The arguments as the person leaves them."""
    before = json.dumps(json.loads(arguments), indent=2) + "\n"
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arguments.json")
        path.write_text(before, "utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the person's own editor
        except OSError as error:
            stop(f"{editor} could not be started: {error.strerror}")
        after = path.read_text("utf-8")
    if done.returncode or after == before:
        stop("nothing was edited, so nothing was answered")
    return after


def _answered(approval: Mapping[str, Any]) -> None:
    level = approval.get("level")
    far = f" ({level})" if approval.get("state") == "approved" and level != "once" else ""
    typer.echo(plain(f"{approval.get('tool')}: {approval.get('state')}{far}"))


def _table(listed: Iterable[Mapping[str, Any]]) -> "Table":
    rows = [
        {
            "id": one.get("id"),
            "tool": one.get("tool"),
            "source": one.get("source"),
            "arguments": _shortened(one),
            "question": str(one.get("title") or "")[:SHORT],  # `show` has the words below it
            "asked by": one.get("caller"),
            "expires in": _left(one),
        }
        for one in listed
    ]
    names = [name for name in _COLUMNS if name != "question" or any(row[name] for row in rows)]
    title = "Waiting for approval" if rows else "Nothing waits for approval"
    return rows_table(title, names, [[row[name] for name in names] for row in rows])


def _card(approval: Mapping[str, Any]) -> "Table":
    """Everything that is known, warnings first."""
    rows: list[list[Any]] = []
    if approval.get("tainted"):
        rows.append(["WARNING", "this run holds text from outside, which may have led the model to this call"])
    rows += [[name, value] for name, value in approval.items() if value not in (None, "", False) and name != "object"]
    return rows_table(f"{approval.get('tool')} of {approval.get('source')}", ("", ""), rows)


def _shortened(approval: Mapping[str, Any]) -> str:
    text = str(approval.get("arguments"))
    return text if len(text) <= SHORT else f"{text[:SHORT]} … ({len(text) - SHORT} more characters: see `show`)"


def _left(approval: Mapping[str, Any]) -> str:
    expires = approval.get("expires_at")
    seconds = max(0, int(expires - time.time())) if isinstance(expires, int) else 0
    return f"{seconds // 60} min {seconds % 60} s"
