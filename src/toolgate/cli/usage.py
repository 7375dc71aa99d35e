"""`toolgate usage`: print the usage of keys, over the API of a running server."""

import json
from typing import Annotated

import typer

from toolgate.cli.api_client import Key, Url, call_api, encode_query
from toolgate.cli.printing import print_table, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import parse_day

_COLUMNS = {
    "day": "day",
    "hour": "hour",
    "key": "key",
    "model": "model",
    "requests": "requests",
    "input_tokens": "input",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "cost": "cost",
    "errors": "failed",
}


def usage(
    by: Annotated[str, typer.Option(help="Group by any of key, model, day and hour, separated by commas.")] = "key",
    since: Annotated[str | None, typer.Option(help="The first day, in UTC: 2026-01-31, or 7d for a week ago.")] = None,
    until: Annotated[str | None, typer.Option(help="The last day.")] = None,
    of: Annotated[str | None, typer.Option(help="The name of one key; needs a key with the scope admin.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON answer of the server.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show requests, tokens and cost. A key with the scope admin sees all keys, other keys see their own."""
    query = {"by": by, "since": parse_day(since), "until": parse_day(until), "key": of}
    answer = call_api(
        url, key, "GET", f"/v1/usage?{encode_query({field: value for field, value in query.items() if value})}"
    )
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    listed = answer.get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if not rows:
        typer.echo("Nothing was used.", err=True)
        return
    # What `--by` does not name is summed up, and has no column.
    fields = [field for field in _COLUMNS if any(field in row for row in rows)]
    values = [[row.get(field) for field in fields] for row in rows]
    cells = [[f"{value:g}" if isinstance(value, float) else value for value in row] for row in values]
    print_table(text_table("Usage", [_COLUMNS[field] for field in fields], cells))
