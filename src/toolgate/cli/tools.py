"""`toolgate tools`: see the tools of a running server, and accept one whose definition has changed. Speaks HTTP.

Descriptions come from strangers: they are printed as text, whatever they hold.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import typer

from toolgate.cli.asking import HERE, Key, Url, ask, plain
from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from rich.table import Table

SHORT = 160
"""Characters of a description that the list shows; `show` shows all."""

app = typer.Typer(
    help="See the server's tools.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Name = Annotated[str, typer.Argument(help="The tool.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")]


@app.callback()
def listed(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="Only tools whose name fits, such as `get_*`.")] = None,
    tags: Annotated[str | None, typer.Option(help="Only tools with any of these tags, with commas between.")] = None,
    as_json: AsJson = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """List the tools that the key may use."""
    if context.invoked_subcommand is not None:
        return
    asked = {word: value for word, value in (("name", name), ("tags", tags)) if value}
    answer = ask(url, key, "GET", f"/v1/tools{'?' if asked else ''}{urlencode(asked)}")
    if as_json:
        _print_json(answer)
        return
    print_table(_table(_rows(answer, "data")))
    for trouble in _rows(answer, "troubles"):
        typer.echo(plain(f"{trouble.get('source', '')}: {trouble.get('message', '')}"), err=True)


@app.command()
def show(name: Name, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Show one tool with its schema."""
    tool = ask(url, key, "GET", f"/v1/tools/{quote(name, safe='')}")
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
    digest: Annotated[str | None, typer.Option(help="The definition that you have looked at.")] = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Let a tool be used again whose definition has changed."""
    ask(url, key, "POST", f"/v1/tools/{quote(name, safe='')}/accept", {"digest": digest} if digest else {})
    typer.echo(f"{plain(name)} is accepted.")


def _rows(answer: Mapping[str, Any], field: str) -> Iterable[Mapping[str, Any]]:
    rows = answer.get(field)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _table(tools: Iterable[Mapping[str, Any]]) -> "Table":
    rows = []
    for tool in tools:
        said = str(tool.get("userDescription") or tool.get("description", ""))
        short = said if len(said) <= SHORT else said[: SHORT - 1] + "…"
        tags = tool.get("tags")
        listed = ", ".join([str(tag) for tag in tags]) if isinstance(tags, list) else ""
        rows.append([tool.get("name"), tool.get("source"), listed, " ".join(short.split())])
    return rows_table("Tools", ("name", "source", "tags", "does"), rows)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
