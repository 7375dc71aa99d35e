"""The commands: what they take and what they say. What they do is elsewhere and imported when they run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from toolgate import __version__
from toolgate.cli import weights
from toolgate.cli.approvals import app as approvals_app
from toolgate.cli.asking import HERE, Key, Url, ask
from toolgate.cli.db import Task, look_after
from toolgate.cli.keys import app as keys_app
from toolgate.cli.toollog import log
from toolgate.cli.tools import app as tools_app
from toolgate.cli.usage import usage

if TYPE_CHECKING:
    from toolgate.config import Config

CONFIG_FILE = Path("toolgate.yaml")
BAD_CONFIG = 2

app = typer.Typer(
    help="One server between LLM clients and LLMs that makes tool calling work everywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file; by default toolgate.yaml, if there is one.")
]


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, in place of server.host.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, in place of server.port.", min=0, max=65535)
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Processes that serve, in place of server.workers; `auto` is one per processor.")
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Apply changes of the file as they are saved.")] = False,
) -> None:
    """Serve."""
    from toolgate.cli.ports import complaint
    from toolgate.cli.watch import watch

    path = _find(config)
    if path is None and (wrong := _lost_keys()):
        _stop(wrong, BAD_CONFIG)
    loaded = _load(path, host, port, _workers(workers))
    wrong = complaint(loaded.server.host, loaded.server.port)
    if wrong:
        _stop(wrong, 1)
    _say(f"Using {path}" if path else f"No {CONFIG_FILE} here: serving the models in the box")
    if reload and path:
        watch(path)
    from toolgate.server.supervisor import how_many

    if how_many(loaded) > 1:
        from toolgate.server.supervisor.supervise import supervise

        raise typer.Exit(supervise(loaded, config_path=path))
    from toolgate.server.build import serve as run

    raise typer.Exit(run(loaded, config_path=path))


@app.command()
def check(
    config: ConfigOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each upstream for its models.")] = False,
) -> None:
    """Check the configuration and show what it means."""
    path = _find(config)
    loaded = _load(path)
    from toolgate.cli.printing import print_table
    from toolgate.cli.tables import aliases_table, models_table, upstreams_table
    from toolgate.server.build import complaint

    if wrong := complaint(loaded):
        _stop(f"{path or 'The built-in configuration'} cannot be used:\n  - {wrong}", BAD_CONFIG)
    _say(f"{path or 'The built-in configuration'} is fine.")
    answers = None
    if probe and loaded.upstreams:
        from toolgate.cli.probe import probe_all

        answers = probe_all(loaded.upstreams.values())
    print_table(models_table(loaded.models))
    if patterns := aliases_table(loaded.models):
        print_table(patterns)
    _say(f"Requests that name no model go to {loaded.default_model or loaded.models[0].name}.")
    if loaded.upstreams:
        print_table(upstreams_table(loaded.upstreams.values(), answers))
    if answers and not all(answer.ok for answer in answers.values()):
        raise typer.Exit(1)


app.command("doctor", hidden=True)(check)


models_app = typer.Typer(invoke_without_command=True)


@models_app.callback()
def models(context: typer.Context, url: Url = HERE, key: Key = None) -> None:
    """List the models of a running server, or see to the weights of the model that runs here."""
    if context.invoked_subcommand is not None:
        return
    from toolgate.cli.printing import print_table
    from toolgate.cli.tables import names_table

    print_table(names_table(ask(url, key, "GET", "/v1/models")))


models_app.command("pull")(weights.pull)
models_app.command("add")(weights.add)
models_app.command("weights")(weights.listed)
app.add_typer(models_app, name="models")


mcp_app = typer.Typer(invoke_without_command=True)


@mcp_app.callback()
def mcp(context: typer.Context, config: ConfigOption = None) -> None:
    """Serve the tools as an MCP server over stdin and stdout, or log in to another."""
    if context.invoked_subcommand is not None:
        return
    loaded = _load(_find(config))
    from toolgate.cli.mcp import serve_stdio
    from toolgate.server.build import opened_door

    raise typer.Exit(serve_stdio(opened_door(loaded)))


@mcp_app.command()
def login(
    name: Annotated[str, typer.Argument(help="The MCP server, as the configuration calls it.")],
    config: ConfigOption = None,
) -> None:
    """Grant this server access to a remote MCP server, in a browser."""
    loaded = _load(_find(config))
    from toolgate.cli.login import log_in

    wrong = log_in(loaded, name)
    if wrong:
        _stop(wrong, 1)
    _say(f"Logged in to {name}. A running server notices within a minute.")


app.add_typer(mcp_app, name="mcp")

tools_app.command("log")(log)
app.add_typer(tools_app, name="tools")
app.add_typer(approvals_app, name="approvals")
app.add_typer(keys_app, name="keys")
app.command("usage")(usage)


@app.command()
def export(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(help="conversations, responses, chats, invocations, usage, approvals; by default all."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only what this key has.")] = None,
    since: Annotated[str | None, typer.Option(help="Only from this day or time on, such as 2026-01-31.")] = None,
    config: ConfigOption = None,
) -> None:
    """Print records from the database, one JSON object a line; a server may go on running."""
    loaded = _load(_find(config))
    from toolgate.cli.export import export as run

    run(loaded, kinds or (), owner, since)


@app.command()
def forget(
    owner: Annotated[str, typer.Argument(help="The name of the key whose records are to be deleted.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    config: ConfigOption = None,
) -> None:
    """Delete from the database everything that a key has: what it said, had run, was asked and used."""
    loaded = _load(_find(config))
    if not yes:
        typer.confirm(f"Delete all records of {owner}? They cannot be brought back", abort=True, err=True)
    from toolgate.cli.export import forget as run

    gone = run(loaded, owner)
    _say(", ".join([f"{count} {kind}" for kind, count in gone.items()]) or f"There were no records of {owner}.")


@app.command()
def db(
    task: Annotated[
        Task, typer.Argument(help="See the version of the tables, bring them to the newest, look for damage.")
    ],
    config: ConfigOption = None,
) -> None:
    """Look after the database; a server brings its tables to the newest version by itself."""
    typer.echo(look_after(_load(_find(config)), task))


@app.command()
def config() -> None:
    """Print an example of a configuration file, with comments."""
    from importlib.resources import files

    typer.echo(files("toolgate.config").joinpath("example.yaml").read_text("utf-8"), nl=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"toolgate {__version__}")


def _find(given: Path | None) -> Path | None:
    return given or (CONFIG_FILE if CONFIG_FILE.is_file() else None)


def _lost_keys() -> str | None:
    """Why the built-in configuration is not served here: the file that had keys is gone."""
    from toolgate.server.callers.demand import SUFFIX

    marker = Path(f"{CONFIG_FILE}{SUFFIX}")
    if not marker.exists():
        return None
    return f"{CONFIG_FILE} had keys and is gone: bring it back, or remove {marker} to let everybody on this machine in."


def _workers(said: str | None) -> int | None:
    if said is None or said == "auto":
        return None if said is None else 0
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= 256:
        _stop(f"--workers takes a number from 1 to 256, or auto; not {said!r}.", BAD_CONFIG)
    return int(said)


def _load(path: Path | None, host: str | None = None, port: int | None = None, workers: int | None = None) -> "Config":
    from toolgate.config import ConfigError, load

    try:
        return load(path, os.environ, host=host, port=port, workers=workers)
    except ConfigError as error:
        _stop(str(error), BAD_CONFIG)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _stop(text: str, code: int) -> NoReturn:
    _say(text)
    raise typer.Exit(code)
