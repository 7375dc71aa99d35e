"""`toolgate tools log`: what became of the calls of server tools, asked of a running server."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from toolgate.cli.asking import HERE, Key, Url, ask
from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from rich.table import Table


def log(
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Only those that ended so: ok, error, timeout, denied, refused, cancelled, outcome_unknown."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only calls of this key; takes a key with the scope admin.")] = None,
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=100)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")] = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Show the last runs of server tools; an admin sees those of all keys, anybody else their own."""
    asked = {"tool": tool, "outcome": outcome, "owner": owner, "limit": limit}
    query = urlencode({name: said for name, said in asked.items() if said is not None})
    answer = ask(url, key, "GET", f"/v1/tool_invocations?{query}")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = answer.get("data")
    print_table(_table([row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []))


def _table(rows: Iterable[Mapping[str, Any]]) -> "Table":
    shown = [
        [_when(row), *[row.get(name) for name in ("owner", "tool", "source", "outcome")], _took(row)] for row in rows
    ]
    return rows_table("Runs of tools", ("when", "key", "tool", "source", "outcome", "took"), shown)


def _when(row: Mapping[str, Any]) -> str:
    started = row.get("started")
    return f"{datetime.fromtimestamp(started):%Y-%m-%d %H:%M:%S}" if isinstance(started, int | float) else ""


def _took(row: Mapping[str, Any]) -> str:
    took = row.get("latency_ms")
    return f"{took:g} ms" if isinstance(took, int | float) else ""
