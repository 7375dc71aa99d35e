"""Find and load the configuration file for a command; a file with mistakes ends the command, and all are printed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from toolgate.config import Config

CONFIG_FILE = Path("toolgate.yaml")
# The status of a wrong command line, too; other failures have 1.
BAD_CONFIG = 2

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration file; by default toolgate.yaml in the current folder."),
]


def find_config(given: Path | None) -> Path | None:
    """Return the file to load: the given one, or the one in the current folder, if there is one."""
    return given or (CONFIG_FILE if CONFIG_FILE.is_file() else None)


def load_config(
    path: Path | None, host: str | None = None, port: int | None = None, workers: int | None = None
) -> "Config":
    """Load the configuration, or end the command with its mistakes."""
    from toolgate.config import ConfigError, load

    try:
        return load(path, os.environ, host=host, port=port, workers=workers)
    except ConfigError:
        from toolgate.app.config_build_checks import check_start

    # The checks that build parts of the server are slow to load; a file with mistakes pays for them, so that all of
    # its mistakes are listed together.
    try:
        return load(path, os.environ, host=host, port=port, workers=workers, check=check_start)
    except ConfigError as error:
        end(str(error), BAD_CONFIG)


def load_storage(path: Path | None) -> "Config":
    """Load only the settings of the database, for commands that need nothing else."""
    from toolgate.config import ConfigError, load

    try:
        return load(path, os.environ, only=("storage", "storage_pool"))
    except ConfigError as error:
        end(str(error), BAD_CONFIG)


def note(text: str) -> None:
    """Print a message to standard error."""
    typer.echo(text, err=True)


def end(text: str, code: int) -> NoReturn:
    """Print a message and end the command with this status."""
    note(text)
    raise typer.Exit(code)
