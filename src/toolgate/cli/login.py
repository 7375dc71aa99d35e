"""`toolgate mcp login`: a person grants Toolgate access to a remote MCP server in a browser."""

import asyncio
import webbrowser

import typer

from toolgate.app.tool_sources import remote
from toolgate.config import Config
from toolgate.mcp.protocol.transport import McpError
from toolgate.tools.tool import ToolCallFailed


def log_in(config: Config, name: str) -> str | None:
    """Log in to the configured server of this name and store the token; return what went wrong, if anything."""
    server = config.tools.mcp.get(name)
    if server is None:
        return (
            f"There is no MCP server {name} in the configuration; there are: {', '.join(config.tools.mcp) or 'none'}."
        )
    if server.url is None:
        return f"{name} is started by a command: there is nothing to log in to."
    try:
        asyncio.run(_log_in(config, name))
    except ToolCallFailed as failure:
        return str(failure)
    except McpError as error:
        return f"The MCP server {name} {error}."
    return None


async def _log_in(config: Config, name: str) -> None:
    from toolgate.mcp.oauth.login import login
    from toolgate.mcp.oauth.redirect import LoopbackRedirectServer

    address, http, logins = remote(config, config.tools.mcp[name])
    async with LoopbackRedirectServer() as redirect:
        await login(name, address, http, logins, open_browser=_open_browser, redirect=redirect)


def _open_browser(url: str) -> None:
    """Open the URL in a browser and print it, for machines that have none."""
    typer.echo(f"Open this address to grant access:\n  {url}", err=True)
    webbrowser.open(url)
