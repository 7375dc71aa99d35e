"""`toolgate export`, `forget` and `db`: commands that open the database themselves and need no server."""

from typing import Annotated

import typer

from toolgate.cli.config_file import ConfigOption, find_config, load_storage, note
from toolgate.cli.database_tasks import Task, run_task
from toolgate.cli.export import RECORD_NAMES
from toolgate.storage.exports import KINDS

_FORGOTTEN = ", ".join([f"{name}s" for name in RECORD_NAMES.values()])


def export(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(help=f"Any of: {', '.join(KINDS)}; by default all."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only records of the key with this name.")] = None,
    since: Annotated[str | None, typer.Option(help="Only records since this day or time, such as 2026-01-31.")] = None,
    config: ConfigOption = None,
) -> None:
    """Print records from the database, one JSON object a line. Needs no server and no key."""
    loaded = load_storage(find_config(config))
    from toolgate.cli.export import export as run

    run(loaded, kinds or (), owner, since)


def forget(
    owner: Annotated[str, typer.Argument(help=f"The name of the key whose records are deleted: {_FORGOTTEN}.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    config: ConfigOption = None,
) -> None:
    """Delete all records of a key from the database. Needs no server and no key."""
    loaded = load_storage(find_config(config))
    if not yes:
        typer.confirm(f"Delete all records of {owner}? This cannot be undone", abort=True, err=True)
    from toolgate.cli.export import forget as run

    note(run(loaded, owner))


def db(
    task: Annotated[
        Task,
        typer.Argument(
            help="`status` shows the version of the tables, `migrate` upgrades them, `check` looks for damage."
        ),
    ],
    config: ConfigOption = None,
) -> None:
    """Show, upgrade or check the tables of the database. A server upgrades them when it starts."""
    typer.echo(run_task(load_storage(find_config(config)), task))
