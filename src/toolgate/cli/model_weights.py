"""`toolgate models pull|add|weights`: manage the weights of the embedded model on this machine. Needs no server."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from toolgate.cli.printing import print_table, text_table

if TYPE_CHECKING:
    from toolgate.upstreams.local.fetch import DownloadProgress
    from toolgate.upstreams.local.weights_cache import WeightsCache
    from toolgate.upstreams.local.weights_catalog import Weights

DEFAULT = "qwen2.5-coder-1.5b"  # the same as in upstreams.embedded.weights, which is loaded only by a command that runs
Folder = Annotated[
    Path | None, typer.Option("--folder", help="The folder of the weights; by default the user's cache folder.")
]

app = typer.Typer(
    help="List, download and add weights of the embedded model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)


@app.command()
def pull(
    model: Annotated[
        str, typer.Argument(help="The name of the weights; `toolgate models weights` lists them.")
    ] = DEFAULT,
    folder: Folder = None,
) -> None:
    """Download weights and verify them; an interrupted download continues."""
    from toolgate.upstreams.local.fetch import WeightsUnavailable, fetch
    from toolgate.upstreams.local.weights_catalog import KNOWN

    if model not in KNOWN:
        _stop(f"{model} is not known; known are {', '.join(KNOWN)}. Any other GGUF file: toolgate models add FILE.")
    weights, cache = KNOWN[model], _cache(folder)
    try:
        with _progress_bar(weights) as report:
            path = fetch(weights, cache, report)
    except WeightsUnavailable as error:
        _stop(str(error))
    except KeyboardInterrupt:
        _stop("Stopped; the next `toolgate models pull` continues.")
    typer.echo(f"{weights.name} is here: {path}")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A GGUF file.", exists=True, dir_okay=False)],
    name: Annotated[str | None, typer.Option(help="The name of the weights; by default the name of the file.")] = None,
    folder: Folder = None,
) -> None:
    """Add a GGUF file of your own; known weights are recognised by their digest."""
    from toolgate.upstreams.local.weights_cache import InvalidWeights

    try:
        held = _cache(folder).add(file, name)
    except (InvalidWeights, OSError) as error:
        _stop(str(error))
    typer.echo(f"{held.name} is here: {held.path}")


@app.command("list")
def listed(folder: Folder = None) -> None:
    """List known weights, and which of them are downloaded."""
    from toolgate.upstreams.local.weights_catalog import KNOWN

    cache = _cache(folder)
    here = {held.name: held for held in cache.entries()}
    rows = [
        (one.name, _size(one.size), one.license, "yes" if one.name in here else "no", one.title)
        for one in KNOWN.values()
    ]
    rows += [
        (held.name, _size(held.size), "", "yes", f"added: {held.path}")
        for held in here.values()
        if held.name not in KNOWN
    ]
    print_table(text_table("Weights", ("name", "size", "license", "downloaded", "description"), rows))


def _cache(folder: Path | None) -> "WeightsCache":
    from toolgate.upstreams.local.weights_cache import WeightsCache, default_folder

    return WeightsCache(folder or default_folder(os.environ))


@contextmanager
def _progress_bar(weights: "Weights") -> Iterator[Callable[["DownloadProgress"], None]]:
    """Show a progress bar on standard error, updated by the function that is yielded."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task(weights.name, total=weights.size)

        def report(progress: "DownloadProgress") -> None:
            activity = "verifying" if progress.checking else f"from {progress.source}"
            shown.update(task, completed=progress.done, description=f"{weights.name}, {activity}")

        yield report


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _stop(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
