"""A group of commands whose modules are imported only when a command of theirs is run or completed.

The list of commands, for `--help` and for the shell, is made of the names and sentences in the table alone.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from toolgate.cli.plain_option_values import adapt_commands, adapt_params


class CommandEntry(NamedTuple):
    """A row of the table: the name of a command, where it is defined (`module:attribute`), and what it does."""

    name: str
    target: str
    help: str
    panel: str | None = None


class DeferredCommand(TyperCommand):
    """Stands for a command in lists until it is loaded."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.help, rich_help_panel=entry.panel)
        self.entry = entry

    def load(self) -> Any:
        """Import the command: a Typer application becomes a group, a function becomes a command."""
        module, _, attribute = self.entry.target.partition(":")
        defined = getattr(import_module(module), attribute)
        if isinstance(defined, typer.Typer):
            group = typer.main.get_group(defined)
            group.name = self.entry.name
            return adapt_commands(group)
        # Typer makes an application with a single command that command, without a group around it.
        single = typer.Typer(add_completion=False)
        single.command(self.entry.name)(defined)
        return adapt_commands(typer.main.get_command(single))


class LazyCommandGroup(TyperGroup):
    """Adds the commands of a table to those that are defined beside it; a subclass has the table."""

    entries: ClassVar[Sequence[CommandEntry]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        own = self.commands
        self.commands = {entry.name: DeferredCommand(entry) for entry in self.entries} | dict(own)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group, with those that Typer adds."""
        return adapt_params(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load the command that the command line names."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, DeferredCommand) else command, rest
