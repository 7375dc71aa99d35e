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
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote, urlsplit

import typer

if TYPE_CHECKING:
    from rich.table import Table

SECONDS = 10.0
SHORT = 300
"""Characters of the arguments that a list shows; `show` shows all."""

app = typer.Typer(
    help="See what waits for a person's approval, and answer it.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Url = Annotated[str, typer.Option("--url", help="Where the server is.", envvar="TOOLGATE_URL")]
Key = Annotated[str | None, typer.Option("--key", help="Key to present.", envvar="TOOLGATE_KEY", show_envvar=True)]
Id = Annotated[str, typer.Argument(help="The approval, as the list names it.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the model and the record.")]
HERE = "http://127.0.0.1:8080"


class Level(StrEnum):
    """How far an approval goes."""

    once = "once"
    session = "session"
    workspace = "workspace"
    always = "always"


@app.callback()
def pending(context: typer.Context, url: Url = HERE, key: Key = None) -> None:
    """List what waits for an answer."""
    if context.invoked_subcommand is None:
        _print(_table(_listed(url, key)))


@app.command()
def show(id: Id, url: Url = HERE, key: Key = None) -> None:
    """Show one approval, with all of its arguments."""
    _print(_card(_ask(url, key, "GET", _path(id))))


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
        text = _in_editor(_ask(url, key, "GET", _path(id))["arguments"]) if edit == "-" else edit
        said["arguments"] = _object(text)
    _answered(_ask(url, key, "POST", _path(id), _with_reason(said, reason)))


@app.command()
def deny(id: Id, reason: Reason = None, url: Url = HERE, key: Key = None) -> None:
    """Do not let the call run."""
    _answered(_ask(url, key, "POST", _path(id), _with_reason({"decision": "deny"}, reason)))


@app.command()
def deny_all(
    run: Annotated[str | None, typer.Option(help="Only what this run asked for.")] = None,
    reason: Reason = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Deny everything that waits."""
    said = _with_reason({} if run is None else {"run": run}, reason)
    denied = _ask(url, key, "POST", "/v1/approvals/deny_all", said)["denied"]
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
            listed = _listed(url, key)
            if listed != seen:
                seen = listed
                _print(_table(listed), anew=True)
            time.sleep(every)
    except KeyboardInterrupt:
        return


@app.command()
def grants(url: Url = HERE, key: Key = None) -> None:
    """List what was granted beyond one call."""
    listed = _ask(url, key, "GET", "/v1/approvals/grants")["data"]
    columns = ("tool", "source", "level", "place", "caller", "granted_by")
    _print(_rows("Grants", columns, [[one.get(name) for name in columns] for one in listed]))


@app.command()
def reset(url: Url = HERE, key: Key = None) -> None:
    """Forget what was granted, so that it is asked about again."""
    forgotten = _ask(url, key, "POST", "/v1/approvals/reset", {})["forgotten"]
    typer.echo(f"Forgot {forgotten} grants.")


def _ask(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    """What the server answers; a refusal ends the command with the server's own words."""
    try:
        status, text = _exchange(url, key, method, path, body)
        answer = json.loads(text)
    except ValueError:
        _stop(f"{url}: the answer is not JSON")
    except OSError as error:
        _stop(f"{url}: no answer ({error})")
    if status != 200 or not isinstance(answer, dict):
        _stop(_plain(_message(answer) or f"{url}: status {status}"))
    return answer


def _message(answer: Any) -> str | None:
    match answer:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return None


def _exchange(url: str, key: str | None, method: str, path: str, body: Any) -> tuple[int, bytes]:
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # with TLS it takes long to load

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        _stop("a URL must start with http:// or https://")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=SECONDS)
    headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, parts.path.rstrip("/") + path, sent, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()


def _listed(url: str, key: str | None) -> list[Mapping[str, Any]]:
    listed: list[Mapping[str, Any]] = _ask(url, key, "GET", "/v1/approvals?state=pending")["data"]
    return listed


def _path(id: str) -> str:
    return f"/v1/approvals/{quote(id, safe='')}"


def _with_reason(said: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return said if reason is None else {**said, "reason": reason}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        _stop(f"the arguments are not JSON: {error}")
    if not isinstance(value, dict):
        _stop("the arguments must be a JSON object")
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
            _stop(f"{editor} could not be started: {error.strerror}")
        after = path.read_text("utf-8")
    if done.returncode or after == before:
        _stop("nothing was edited, so nothing was answered")
    return after


def _answered(approval: Mapping[str, Any]) -> None:
    level = approval.get("level")
    far = f" ({level})" if approval.get("state") == "approved" and level != "once" else ""
    typer.echo(_plain(f"{approval.get('tool')}: {approval.get('state')}{far}"))


def _table(listed: Iterable[Mapping[str, Any]]) -> "Table":
    columns = ("id", "tool", "source", "arguments", "asked by", "expires in")
    rows = [
        [one.get("id"), one.get("tool"), one.get("source"), _shortened(one), one.get("caller"), _left(one)]
        for one in listed
    ]
    return _rows("Waiting for approval" if rows else "Nothing waits for approval", columns, rows)


def _card(approval: Mapping[str, Any]) -> "Table":
    """Everything that is known, warnings first."""
    rows: list[list[Any]] = []
    if approval.get("tainted"):
        rows.append(["WARNING", "this run holds text from outside, which may have led the model to this call"])
    rows += [[name, value] for name, value in approval.items() if value not in (None, "", False) and name != "object"]
    return _rows(f"{approval.get('tool')} of {approval.get('source')}", ("", ""), rows)


def _rows(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_plain(title)), title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(_plain("" if cell is None else str(cell))) for cell in row])
    return table


def _print(table: "Table", *, anew: bool = False) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200
    elif anew:
        console.clear()
    console.print(table)


def _shortened(approval: Mapping[str, Any]) -> str:
    text = str(approval.get("arguments"))
    return text if len(text) <= SHORT else f"{text[:SHORT]} … ({len(text) - SHORT} more characters: see `show`)"


def _left(approval: Mapping[str, Any]) -> str:
    expires = approval.get("expires_at")
    seconds = max(0, int(expires - time.time())) if isinstance(expires, int) else 0
    return f"{seconds // 60} min {seconds % 60} s"


def _plain(text: str) -> str:
    """The text without anything that would move a cursor or turn the reading direction."""
    return "".join([char if char.isprintable() else "\ufffd" for char in text])


def _stop(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
