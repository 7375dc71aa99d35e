"""Print tables: laid out on a terminal, as lines of tab-separated values elsewhere."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import typer

from toolgate.cli.api_client import plain
from toolgate.cli.times import format_iso

# Fields of records that are points of time.
_MOMENTS = ("created", "started", "ended")


class TextTable(NamedTuple):
    """A table of plain text."""

    title: str
    columns: list[str]
    cells: list[list[str]]
    # Columns that are never broken, so that their cells can be copied.
    whole: tuple[str, ...] = ()


def text_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], whole: tuple[str, ...] = ()
) -> TextTable:
    """Make a table of plain text; None becomes an empty cell."""
    return TextTable(
        plain(title),
        list(columns),
        [
            ["" if value is None else "\n".join([plain(line) for line in str(value).split("\n")]) for value in row]
            for row in rows
        ],
        whole,
    )


def print_table(table: TextTable) -> None:
    """Print a table; a program that reads it gets the rows alone, without title, column names and borders."""
    if not sys.stdout.isatty():
        for row in table.cells:
            typer.echo("\t".join([" ".join(cell.split()) for cell in row]))
        return
    if not table.cells:
        typer.echo(f"{table.title}: none.")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # `Text` keeps Rich from reading [bold] and the like in a cell as markup.
    shown = Table(title=Text(table.title), title_justify="left")
    for column in table.columns:
        shown.add_column(column, overflow="fold", no_wrap=column in table.whole)
    for row in table.cells:
        shown.add_row(*[Text(cell) for cell in row])
    Console().print(shown)


def print_records(
    rows: Sequence[Mapping[str, Any]],
    more: bool,
    fields: Sequence[str],
    table: Callable[[Sequence[Mapping[str, Any]]], TextTable],
    *,
    noun: str,
    as_json: bool,
) -> None:
    """Print records: as JSON lines, as a `table` on a terminal, and elsewhere these `fields` of each."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    elif not sys.stdout.isatty():
        cells = [
            [format_iso(row.get(field)) if field in _MOMENTS else cell_text(row.get(field)) for field in fields]
            for row in rows
        ]
        print_table(text_table("", fields, cells))
    elif rows:
        print_table(table(rows))
    else:
        typer.echo(f"There are no such {noun}.", err=True)
    if more and sys.stderr.isatty():
        typer.echo("There are more: see --limit, --since and the other filters.", err=True)


def cell_text(value: Any) -> Any:
    """Return a value of a record as a cell of a table: lists joined by commas, yes and no for booleans."""
    if isinstance(value, list):
        return ", ".join([str(one) for one in value])
    return ("yes" if value else "no") if isinstance(value, bool) else value


def format_duration(seconds: float) -> str:
    """Format a duration for a person, in its largest unit."""
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            return count(int(seconds // size), unit)
    return "less than a second"


def count(number: int, noun: str) -> str:
    """Write a number of things, with the noun in its singular for one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
