"""`toolgate mcp` and `toolgate mcp login`: be an MCP server over stdin and stdout, and log in to remote ones."""

from typing import Annotated

import typer

from toolgate.cli.config_file import ConfigOption, end, find_config, load_config, note

app = typer.Typer(invoke_without_command=True)


@app.callback()
def mcp(context: typer.Context, config: ConfigOption = None) -> None:
    """Serve the tools as an MCP server over stdin and stdout; with `login`: log in to a remote MCP server."""
    if context.invoked_subcommand is not None:
        return
    loaded = load_config(find_config(config))
    from toolgate.app.tools import open_tool_catalog
    from toolgate.cli.mcp import serve_stdio

    raise typer.Exit(serve_stdio(open_tool_catalog(loaded)))


@app.command()
def login(
    name: Annotated[str, typer.Argument(help="The name of the MCP server in the configuration.")],
    config: ConfigOption = None,
) -> None:
    """Log in to a remote MCP server in a browser, and store the token."""
    loaded = load_config(find_config(config))
    from toolgate.cli.login import log_in

    if problem := log_in(loaded, name):
        end(problem, 1)
    note(f"Logged in to {name}. A running server notices within a minute.")
