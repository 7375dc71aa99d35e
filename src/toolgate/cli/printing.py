"""Tables on a terminal. Rich is imported when one is printed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolgate.cli.asking import plain

if TYPE_CHECKING:
    from rich.table import Table


def rows_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> "Table":
    """A table of plain text; without column titles it is a card."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(plain(title)), title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(_cell(cell)) for cell in row])
    return table


def _cell(value: Any) -> str:
    return "\n".join([plain(line) for line in str(value).split("\n")]) if value is not None else ""


def print_table(table: "Table", *, anew: bool = False) -> None:
    """Print it, as wide as it needs when nobody looks at it; `anew` clears the screen first."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200
    elif anew:
        console.clear()
    console.print(table)
