"""The table of all commands. Each is defined in a module of its own, which is imported when the command runs."""

from typing import ClassVar

import typer

from toolgate.cli.lazy_group import CommandEntry, LazyCommandGroup

_SERVER = "Run a server"
_CLIENT = "Use a running server"
_FILES = "Files on this machine"


class RootCommandGroup(LazyCommandGroup):
    """All commands, in the order of `toolgate --help`."""

    entries: ClassVar = (
        CommandEntry("serve", "toolgate.cli.serve:serve", "Start the server.", _SERVER),
        CommandEntry(
            "check",
            "toolgate.cli.check:check",
            "Show all mistakes of the configuration, or the models and upstreams that it defines.",
            _SERVER,
        ),
        CommandEntry(
            "doctor",
            "toolgate.cli.doctor:doctor",
            "Check configuration, port, database, Redis, upstreams, keys, weights, disk and tools, and say what to do.",
            _SERVER,
        ),
        CommandEntry(
            "mcp",
            "toolgate.cli.mcp_commands:app",
            "Serve the tools as an MCP server over stdin and stdout; with `login`: log in to a remote MCP server.",
            _SERVER,
        ),
        CommandEntry(
            "chat",
            "toolgate.cli.chat.command:chat",
            "Chat with a model in the terminal, with the tools of the server; a question from a pipe is answered once.",
            _CLIENT,
        ),
        CommandEntry(
            "models",
            "toolgate.cli.models:app",
            "List the models of a running server; with a command: manage the weights of the embedded model.",
            _CLIENT,
        ),
        CommandEntry("tools", "toolgate.cli.tools:app", "List the tools of a running server.", _CLIENT),
        CommandEntry(
            "approvals",
            "toolgate.cli.approvals:app",
            "List the tool calls that need a person's approval, and answer them.",
            _CLIENT,
        ),
        CommandEntry(
            "runs",
            "toolgate.cli.runs:app",
            "List the runs of a running server, follow, cancel and fork them.",
            _CLIENT,
        ),
        CommandEntry(
            "requests",
            "toolgate.cli.requests:app",
            "List the requests that a running server has recorded.",
            _CLIENT,
        ),
        CommandEntry("keys", "toolgate.cli.keys:app", "Make keys, and manage the keys of a running server.", _CLIENT),
        CommandEntry("usage", "toolgate.cli.usage:usage", "Show requests, tokens and cost.", _CLIENT),
        CommandEntry(
            "export",
            "toolgate.cli.database_commands:export",
            "Print records from the database, one JSON object a line. Needs no server and no key.",
            _FILES,
        ),
        CommandEntry(
            "forget",
            "toolgate.cli.database_commands:forget",
            "Delete all records of a key from the database. Needs no server and no key.",
            _FILES,
        ),
        CommandEntry(
            "db",
            "toolgate.cli.database_commands:db",
            "Show, upgrade or check the tables of the database. A server upgrades them when it starts.",
            _FILES,
        ),
        CommandEntry(
            "config",
            "toolgate.cli.version_and_config:config",
            "Print an example of a configuration file, with comments.",
            _FILES,
        ),
        CommandEntry("version", "toolgate.cli.version_and_config:version", "Print the version.", _FILES),
    )


app = typer.Typer(
    cls=RootCommandGroup,
    help="One server between LLM clients and LLMs that makes tool calling work everywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)


@app.callback()
def toolgate() -> None:
    """Make the application a group; its commands are in the table."""
