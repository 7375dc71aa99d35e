"""`toolgate tools`: list the tools of a running server and their calls, and accept a changed definition.

Descriptions are untrusted: they are printed as plain text, whatever they hold.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from toolgate.cli.api_client import Key, Url, call_api, encode_query, encode_segment, plain
from toolgate.cli.printing import print_table, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import format_iso, format_milliseconds, format_moment

# Characters of a description that the list shows; `show` shows all.
SHORT = 160

app = typer.Typer(
    help="List the tools of a running server.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Name = Annotated[str, typer.Argument(help="The name of the tool.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON answer of the server.")]


@app.callback()
def listed(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="Only tools whose name matches, such as `get_*`.")] = None,
    tags: Annotated[str | None, typer.Option(help="Only tools with one of these tags, separated by commas.")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the tools that the key may use."""
    if context.invoked_subcommand is not None:
        return
    filters = {field: value for field, value in (("name", name), ("tags", tags)) if value}
    answer = call_api(url, key, "GET", f"/v1/tools{'?' if filters else ''}{encode_query(filters)}")
    if as_json:
        _print_json(answer)
        return
    rows = []
    for tool in _rows(answer, "data"):
        text = str(tool.get("userDescription") or tool.get("description", ""))
        short = text if len(text) <= SHORT else text[: SHORT - 1] + "…"
        labels = tool.get("tags")
        shown_tags = ", ".join([str(label) for label in labels]) if isinstance(labels, list) else ""
        rows.append([tool.get("name"), tool.get("source"), shown_tags, " ".join(short.split())])
    print_table(text_table("Tools", ("name", "source", "tags", "does"), rows))
    # Sources that could not be opened, on standard error: their tools are missing from the list.
    for problem in _rows(answer, "troubles"):
        for line in str(problem.get("message", "")).splitlines():
            typer.echo(plain(f"{problem.get('source', '')}: {line}"), err=True)


@app.command()
def show(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show one tool with its schema."""
    tool = call_api(url, key, "GET", f"/v1/tools/{encode_segment(name)}")
    if as_json:
        _print_json(tool)
        return
    for field, value in tool.items():
        if field == "object":
            continue
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        typer.echo("\n".join([plain(line) for line in f"{field}: {text}".splitlines()]))


@app.command()
def accept(
    name: Name,
    digest: Annotated[
        str | None, typer.Option(help="The digest of the definition that you have read; another one is not accepted.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Accept the changed definition of an MCP tool, so that it is used again."""
    call_api(url, key, "POST", f"/v1/tools/{encode_segment(name)}/accept", {"digest": digest} if digest else {})
    typer.echo(f"{plain(name)} is accepted.")


@app.command()
def log(
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Only calls with this outcome: ok, error, timeout, denied, refused, cancelled, outcome_unknown."
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only calls of this key; needs a key with the scope admin.")] = None,
    limit: Annotated[int, typer.Option(help="Number of calls, newest first.", min=1, max=100)] = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show the last calls of server tools. A key with the scope admin sees all keys, other keys see their own."""
    filters = {"tool": tool, "outcome": outcome, "owner": owner, "limit": limit}
    query = encode_query({field: value for field, value in filters.items() if value is not None})
    answer = call_api(url, key, "GET", f"/v1/tool_invocations?{query}")
    if as_json:
        _print_json(answer)
        return
    rows = []
    for call in _rows(answer, "data"):
        when, took = call.get("started"), call.get("latency_ms")
        fields = [call.get(name) for name in ("owner", "tool", "source", "outcome")]
        if sys.stdout.isatty():
            rows.append([format_moment(when), *fields, format_milliseconds(took)])
        else:
            rows.append([format_iso(when), *fields, took])
    columns = ("when", "key", "tool", "source", "outcome", "took")
    print_table(text_table("Calls of tools", columns, rows, whole=("when", "took")))


def _rows(answer: Mapping[str, Any], field: str) -> Iterable[Mapping[str, Any]]:
    rows = answer.get(field)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
