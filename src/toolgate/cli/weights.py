"""`toolgate models pull|add|weights`: the weights of the embedded model on this machine. Speaks to no server of ours."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from toolgate.upstreams.embedded.cache import Cache
    from toolgate.upstreams.embedded.fetch import Progress
    from toolgate.upstreams.embedded.weights import Weights

DEFAULT = "qwen2.5-coder-1.5b"  # the same as in upstreams.embedded.weights, which is loaded only by a command that runs
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where weights are kept; by default the user's cache folder.")
]

app = typer.Typer(
    help="See, fetch and add the weights of the embedded model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)


@app.command()
def pull(
    model: Annotated[
        str, typer.Argument(help="Which weights; `toolgate models weights` lists those that are known.")
    ] = DEFAULT,
    folder: Folder = None,
) -> None:
    """Fetch weights, going on where an earlier attempt stopped, and verify them."""
    from toolgate.upstreams.embedded.fetch import NoWeights, fetch

    weights, cache = _known(model), _cache(folder)
    try:
        with _bar(weights) as tell:
            path = fetch(weights, cache, tell)
    except NoWeights as error:
        _stop(str(error))
    except KeyboardInterrupt:
        _stop("Stopped; the next `toolgate models pull` goes on from here.")
    typer.echo(f"{weights.name} is here: {path}")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A GGUF file.", exists=True, dir_okay=False)],
    name: Annotated[str | None, typer.Option(help="The name to know it by; by default the file's.")] = None,
    folder: Folder = None,
) -> None:
    """Keep a copy of a GGUF file that you have; known weights are recognised by their digest."""
    from toolgate.upstreams.embedded.cache import BadWeights

    try:
        held = _cache(folder).add(file, name)
    except (BadWeights, OSError) as error:
        _stop(str(error))
    typer.echo(f"{held.name} is here: {held.path}")


@app.command("list")
def listed(folder: Folder = None) -> None:
    """List the weights that are known and those that are here."""
    from toolgate.upstreams.embedded.weights import KNOWN

    cache = _cache(folder)
    here = {held.name: held for held in cache.held()}
    rows = [
        (one.name, _size(one.size), one.license, "yes" if one.name in here else "no", one.title)
        for one in KNOWN.values()
    ]
    rows += [
        (held.name, _size(held.size), "", "yes", f"added: {held.path}")
        for held in here.values()
        if held.name not in KNOWN
    ]
    print_table(rows_table("Weights", ("name", "size", "license", "here", "what"), rows))


def _known(model: str) -> "Weights":
    from toolgate.upstreams.embedded.weights import KNOWN

    if model not in KNOWN:
        _stop(f"{model} is not known; known are {', '.join(KNOWN)}. Any other GGUF file: toolgate models add FILE.")
    return KNOWN[model]


def _cache(folder: Path | None) -> "Cache":
    from toolgate.upstreams.embedded.cache import Cache, default_folder

    return Cache(folder or default_folder(os.environ))


@contextmanager
def _bar(weights: "Weights") -> Iterator[Callable[["Progress"], None]]:
    """A progress bar on standard error, which moves as it is told."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task(weights.name, total=weights.size)

        def tell(progress: "Progress") -> None:
            doing = "verifying" if progress.checking else f"from {progress.source}"
            shown.update(task, completed=progress.done, description=f"{weights.name}, {doing}")

        yield tell


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _stop(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
