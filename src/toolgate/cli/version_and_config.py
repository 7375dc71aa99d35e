"""`toolgate version` and `toolgate config`: what this program is, and how its configuration looks."""

import typer

from toolgate import __version__


def config() -> None:
    """Print an example of a configuration file, with comments."""
    from importlib.resources import files

    typer.echo(files("toolgate.config").joinpath("example.yaml").read_text("utf-8"), nl=False)


def version() -> None:
    """Print the version."""
    typer.echo(f"toolgate {__version__}")
