"""What commands show as tables. Rich is imported here and nowhere else."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolgate.cli.probe import Probed
from toolgate.config import Model, Upstream


def show(table: Table) -> None:
    """Print a table to standard output, as wide as it needs when nobody looks at it."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def models_table(models: Iterable[Model]) -> Table:
    """Models, where they come from and how they are spoken to."""
    table = _table("Models", "name", "aliases", "asks", "tools", "system", "falls back to")
    for model in models:
        asks = [f"{target.upstream}: {target.model}" for target in model.targets]
        _add(
            table,
            model.name,
            ", ".join(model.aliases),
            "\n".join(asks),
            model.tools,
            model.system,
            ", ".join(model.fallbacks),
        )
    return table


def upstreams_table(upstreams: Iterable[Upstream], answers: Mapping[str, Probed] | None) -> Table:
    """Upstreams, and what they said if they were asked; of a key only its end is shown."""
    table = _table("Upstreams", "name", "dialect", "base URL", "key", *(["answer"] if answers else []))
    for one in upstreams:
        key = one.api_key.hint if one.api_key else "none"
        said = [f"{'ok' if answers[one.name].ok else 'FAILED'}: {answers[one.name].said}"] if answers else []
        _add(table, one.name, one.dialect, one.base_url, key, *said)
    return table


def names_table(answer: Any) -> Table:
    """The models that a server lists."""
    table = _table("Models", "name", "owner")
    listed = answer.get("data") if isinstance(answer, dict) else None
    for model in listed if isinstance(listed, list) else []:
        if isinstance(model, dict):
            _add(table, str(model.get("id", "")), str(model.get("owned_by", "")))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*[escape("".join(char for char in cell if char.isprintable() or char == "\n")) for cell in cells])
