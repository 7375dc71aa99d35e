"""Commands start fast, because each loads only what it needs; modules are counted, not seconds (spec: E2)."""

import os
import subprocess
import sys

import pytest
import typer

from toolgate.cli.commands import RootCommandGroup, app
from toolgate.cli.lazy_group import CommandEntry, DeferredCommand

HEAVY = {"asyncio", "dbos", "httptools", "msgspec", "multiprocessing", "pydantic", "sqlalchemy", "uvloop", "yaml"}
"""Packages of which none is needed to call a server."""

OURS = {"toolgate.app", "toolgate.config", "toolgate.conversation", "toolgate.dialects", "toolgate.tools"}
CLIENTS = [
    ["chat", "Hello"],
    ["models"],
    ["tools"],
    ["tools", "log"],
    ["approvals"],
    ["approvals", "approve", "mcpr_" + 24 * "x"],
    ["keys", "list"],
    ["usage"],
    ["runs", "--since", "1h"],
    ["requests"],
]
"""Commands that only call a server."""


def run(*arguments: str, **env: str) -> tuple[str, set[str]]:
    """Run the program, and return its output and the modules that it has imported."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('LOADED', *sys.modules))\n"
        "from toolgate.cli import main\n"
        "sys.argv[0] = 'toolgate'\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TOOLGATE_URL": "http://127.0.0.1:9", **env},
    )
    output, _, modules = done.stdout.rpartition("LOADED")
    return output + done.stderr, set(modules.split())


@pytest.mark.parametrize("command", CLIENTS, ids=" ".join)
def test_a_command_that_calls_a_server_loads_no_part_of_the_server(command: list[str]) -> None:
    output, loaded = run(*command)
    assert "http://127.0.0.1:9: no answer" in output
    assert loaded & (HEAVY | OURS | {"rich", "pygments"}) == set()
    shared = {
        "commands",
        "lazy_group",
        "plain_option_values",
        "api_client",
        "config_file",
        "server_url",
        "event_stream",
        "printing",
        "paging",
        "times",
        "model_weights",
    }
    own = {name.split(".")[2] for name in loaded if name.startswith("toolgate.cli.")}
    assert own - shared == {command[0]}


def test_plain_values_are_converted_without_pydantic() -> None:
    """Typer converts with pydantic, which takes a tenth of the server's start."""
    output, loaded = run("serve", "--config", "nothing.yaml", "--host", "127.0.0.1", "--port", "65535")
    assert "nothing.yaml cannot be used" in output
    assert "pydantic" not in loaded


@pytest.mark.parametrize("port", ["x", "-1", "65536", ""])
def test_what_is_no_number_in_its_range_is_refused(port: str) -> None:
    output, _ = run("serve", "--port", port)
    assert "Invalid value for '--port'" in output


def test_help_loads_no_command() -> None:
    output, loaded = run("--help")
    assert all(entry.name in output for entry in RootCommandGroup.entries)
    assert loaded & (HEAVY | OURS) == set()
    assert {name for name in loaded if name.startswith("toolgate.cli.")} == {
        "toolgate.cli.commands",
        "toolgate.cli.lazy_group",
        "toolgate.cli.plain_option_values",
    }


@pytest.mark.parametrize("entry", RootCommandGroup.entries, ids=lambda entry: entry.name)
def test_the_table_describes_a_command_as_the_command_does(entry: CommandEntry) -> None:
    command = DeferredCommand(entry).load()
    assert command.name == entry.name
    assert " ".join(command.help.split()).startswith(entry.help.removesuffix("."))


def test_a_shell_completes_commands_options_and_the_commands_of_a_group() -> None:
    def completed(words: str) -> list[str]:
        count = len(words.split(" ")) - 1
        output, loaded = run(_TOOLGATE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(count))
        assert loaded & (HEAVY | OURS) == set()
        return output.split()

    assert completed("toolgate che") == ["check"]
    assert completed("toolgate keys r") == ["rotate", "revoke"]
    assert completed("toolgate tools log --ou") == ["--outcome"]


def test_the_application_is_one_group() -> None:
    assert isinstance(typer.main.get_command(app), RootCommandGroup)
