"""`toolgate usage`: what keys have used, asked of a running server."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from toolgate.cli.asking import HERE, Key, Url, ask
from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = {
    "day": "day",
    "key": "key",
    "model": "model",
    "requests": "requests",
    "input_tokens": "input",
    "cached_tokens": "of it cached",
    "output_tokens": "output",
    "cost": "cost",
}


def usage(
    by: Annotated[str, typer.Option(help="What to add up by: any of key, model and day, with commas between.")] = "key",
    since: Annotated[str | None, typer.Option(help="The first day, such as 2026-01-31, in UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="The last day.")] = None,
    of: Annotated[str | None, typer.Option(help="The name of one key; this takes a key with the scope admin.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")] = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Show what was used: requests, tokens and cost; an admin sees all keys, anybody else their own."""
    asked = {"by": by, "since": since, "until": until, "key": of}
    answer = ask(url, key, "GET", f"/v1/usage?{urlencode({name: said for name, said in asked.items() if said})}")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    listed = answer.get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if rows:
        print_table(_table(rows))
    else:
        typer.echo("Nothing was used.", err=True)


def _table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    names = [name for name in _COLUMNS if any(name in row for row in rows)]
    cells: Iterable[list[Any]] = ([_cell(row.get(name)) for name in names] for row in rows)
    return rows_table("Usage", [_COLUMNS[name] for name in names], cells)


def _cell(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value
