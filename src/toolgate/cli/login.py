"""`toolgate mcp login`: a person grants this server access to a remote MCP server, in a browser."""

import asyncio
import webbrowser

import typer

from toolgate.config import Config
from toolgate.server.workshop.sources import remote
from toolgate.tools.sources.mcp.line import Trouble
from toolgate.tools.tool import ToolFailure


def log_in(config: Config, name: str) -> str | None:
    """Log in to the configured server of this name and keep the token; what went wrong, if anything."""
    server = config.tools.mcp.get(name)
    if server is None:
        return (
            f"There is no MCP server {name} in the configuration; there are: {', '.join(config.tools.mcp) or 'none'}."
        )
    if server.url is None:
        return f"{name} is started by a command: there is nothing to log in to."
    try:
        asyncio.run(_log_in(config, name))
    except ToolFailure as failure:
        return str(failure)
    except Trouble as trouble:
        return f"The MCP server {name} {trouble}."
    return None


async def _log_in(config: Config, name: str) -> None:
    from toolgate.tools.sources.mcp.oauth.login import login
    from toolgate.tools.sources.mcp.oauth.redirect import LoopbackRedirect

    at, http, tokens = remote(config, config.tools.mcp[name])
    async with LoopbackRedirect() as redirect:
        await login(name, at, http, tokens, open_browser=_show, redirect=redirect)


def _show(address: str) -> None:
    """Open the address in a browser and print it, for machines that have none."""
    typer.echo(f"Open this address to grant access:\n  {address}", err=True)
    webbrowser.open(address)
