"""`toolgate requests`: list the records of requests on a running server, and show one of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolgate.cli.api_client import Key, Url, call_api, encode_segment, plain
from toolgate.cli.paging import id_of, list_pages
from toolgate.cli.printing import TextTable, cell_text, print_records, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import format_milliseconds, format_moment, parse_moment

# Characters of an id that a table shows; they are enough for `show`.
SHORT_ID = 8

# The columns that a program gets.
FIELDS = (
    *("created", "id", "key", "model", "status", "dialect", "upstream", "input_tokens", "output_tokens", "cost"),
    *("first_token_ms", "total_ms", "tools", "code", "error", "warnings"),
)

app = typer.Typer(
    help="List the requests that a running server has recorded, newest first. A `!` after the status marks a request "
    "with warnings, such as a fallback that answered; `show` prints them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


@app.callback()
def listed(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="Only requests for this model.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only requests with this status: a number, 4xx, 5xx, or error.")
    ] = None,
    dialect: Annotated[str | None, typer.Option(help="Only requests of this client API, such as anthropic.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only requests of this key; needs the scope admin.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since then: 30m, 2h, 7d, a day or a time.")] = None,
    until: Annotated[str | None, typer.Option(help="Only before then.")] = None,
    search: Annotated[str | None, typer.Option(help="Only requests whose model, error or id holds this text.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of requests, newest first.", min=1)] = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List requests, newest first. A key with the scope admin sees all keys, other keys see their own."""
    if context.invoked_subcommand is not None:
        return
    query = {"model": model, "status": status, "dialect": dialect, "key": owner, "q": search}
    moments = {"since": parse_moment(since), "until": parse_moment(until)}
    rows, more = list_pages(url, key, "/v1/requests", query | moments, limit)
    print_records(rows, more, FIELDS, _requests_table, noun="requests", as_json=as_json)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The id of the request (x-request-id), or its first characters.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show one request with all of its fields."""
    full = id_of(url, key, "/v1/requests", id, "requests")
    record = call_api(url, key, "GET", f"/v1/requests/{encode_segment(full)}")
    if as_json:
        typer.echo(json.dumps(record))
        return
    for field, value in record.items():
        if field == "object" or value in (None, [], ""):
            continue
        text = f"{format_moment(value)} ({value})" if field == "created" else cell_text(value)
        typer.echo(plain(f"{field}: {text}"))


def _requests_table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Table the requests for a person; columns that say nothing are left out."""
    several = len({row.get("key") for row in rows}) > 1
    tokens = [(row.get("input_tokens") or 0, row.get("output_tokens") or 0) for row in rows]
    cells: dict[str, list[Any]] = {
        "when": [format_moment(row.get("created")) for row in rows],
        "id": [str(row.get("id"))[:SHORT_ID] for row in rows],
        "key": [row.get("key") or "(none)" for row in rows] if several else [],
        "model": [row.get("model") for row in rows],
        "status": [f"{row.get('status')}{'!' if row.get('warnings') else ''}" for row in rows],
        "tokens": [f"{sent} + {received}" if sent or received else "" for sent, received in tokens],
        "cost": [f"{row['cost']:g}" if row.get("cost") else "" for row in rows],
        "took": [format_milliseconds(row.get("total_ms")) for row in rows],
        "tools, problem": [row.get("code") or row.get("error") or cell_text(row.get("tools")) for row in rows],
    }
    shown = {name: column for name, column in cells.items() if any(column)}
    return text_table("Requests", shown, zip(*shown.values(), strict=True), ("when", "id", "status", "state"))
