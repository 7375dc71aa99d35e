"""`toolgate check`: print all mistakes of the configuration, or the models and upstreams that it defines."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from toolgate.cli.config_file import BAD_CONFIG, ConfigOption, end, find_config, load_config, note

if TYPE_CHECKING:
    from toolgate.config import Config

# How to get programs that MCP servers are usually started with.
_INSTALLERS = {"uvx": "it comes with uv: pip install uv", "npx": "it comes with Node.js"}


def check(
    config: ConfigOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Also ask each upstream for its models.")] = False,
) -> None:
    """Show all mistakes of the configuration, or the models and upstreams that it defines."""
    path = find_config(config)
    loaded = load_config(path)
    from toolgate.app.serve import config_problems
    from toolgate.cli.check_tables import aliases_table, models_table, upstreams_table
    from toolgate.cli.printing import print_table
    from toolgate.config import ConfigError

    if problems := config_problems(loaded):
        end(str(ConfigError(problems, str(path or "The built-in configuration"))), BAD_CONFIG)
    answers = None
    if probe and loaded.upstreams:
        from toolgate.cli.probe_upstreams import probe_all

        answers = probe_all(loaded.upstreams.values())
    failed = [name for name, answer in (answers or {}).items() if not answer.ok]
    # Notes go to standard error: a program that reads the tables gets nothing else.
    but = f", but {len(failed)} of {len(loaded.upstreams)} upstreams failed: {', '.join(failed)}" if failed else ""
    note(f"{path or 'The built-in configuration'} is fine{but}.")
    for warning in _warnings(loaded):
        note(f"Warning: {warning}")
    print_table(models_table(loaded.models))
    if patterns := aliases_table(loaded.models):
        print_table(patterns)
    note(f"Requests that name no model go to {loaded.default_model or loaded.models[0].name}.")
    if loaded.upstreams:
        print_table(upstreams_table(loaded.upstreams.values(), answers))
    if loaded.tools.python or loaded.tools.mcp or loaded.tools.http:
        note("`toolgate doctor` starts the tool sources and shows what is wrong with them.")
    if failed:
        raise typer.Exit(1)


def _warnings(config: "Config") -> Iterator[str]:
    """Yield what a server starts with, but what will not work as it is probably meant."""
    from toolgate.config import short_key_warnings

    if not any(model.price.input or model.price.output for model in config.models):
        for key in config.keys:
            if key.budget is not None:
                yield f"the budget of the key {key.name} limits nothing, because no model has a price."
    yield from short_key_warnings(config)
    if config.redis is not None and config.tools.mcp_sessions:
        yield (
            "tools.mcp_sessions keeps MCP sessions in one process: with several nodes, their next request may reach"
            " another one, which refuses it. Remove the setting, or let the balancer send a client to one node."
        )
    base = config.source.parent if config.source else None
    for name, server in config.tools.mcp.items():
        if not server.command:
            continue
        # A command is found in the PATH of its `env`, if it has one, or in its folder.
        path = server.env["PATH"].reveal() if "PATH" in server.env else None
        program = server.command[0]
        folder = (base / (server.cwd or ".")) if base else None
        if shutil.which(program, path=path) is None and not (folder and shutil.which(str(folder / program))):
            hint = f" ({_INSTALLERS[program]})" if program in _INSTALLERS else ""
            yield f"the MCP server {name} cannot be started: there is no program {program}{hint}."
