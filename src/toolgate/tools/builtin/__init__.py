"""The tools that every server brings: the time, arithmetic, the web, and, where granted, files and commands.

They are also the samples to read before writing one: each is a `ToolSpec` and a class with `prepare` and `invoke`.
"""

from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.builtin.calculator import Calculator
from toolgate.tools.builtin.clock import Clock
from toolgate.tools.builtin.command import RunCommand
from toolgate.tools.builtin.fetch import Fetch
from toolgate.tools.builtin.files import ListFiles, ReadFile
from toolgate.tools.builtin.roots import Roots
from toolgate.tools.builtin.search import SearchFiles
from toolgate.tools.builtin.write import WriteFile
from toolgate.tools.egress import Http
from toolgate.tools.tool import OnChange, Tool

NAMES = frozenset(
    {"clock", "calculator", "fetch", "list_files", "read_file", "search_files", "write_file", "run_command"}
)


class BuiltinSource:
    """Brings the built-in tools; files only from `roots`, commands only if allowed, and only in a root."""

    name = "builtin"
    trouble: str | None = None

    def __init__(
        self,
        roots: Sequence[Path] = (),
        *,
        http: Http | None = None,
        allow_commands: bool = False,
        disabled: frozenset[str] = frozenset(),
        protected: Sequence[Path] = (),
    ) -> None:
        """Raises ValueError for a root that is no folder or a disabled name that no tool has.

        `protected` are the server's own files and folders (its settings, database, tools), which no tool may touch.
        """
        if disabled - NAMES:
            raise ValueError(f"there is no built-in tool called {', '.join(sorted(disabled - NAMES))}")
        tools: list[Tool] = [Clock(), Calculator()]
        if http is not None:
            tools.append(Fetch(http))
        if roots:
            tools += _on_files(Roots(roots, protected), allow_commands)
        self.tools: Sequence[Tool] = tuple(tool for tool in tools if tool.spec.name not in disabled)

    async def open(self, on_change: OnChange) -> None:
        """Nothing has to be opened, and nothing ever changes."""

    async def aclose(self) -> None:
        """Nothing was opened."""


def _on_files(roots: Roots, allow_commands: bool) -> list[Tool]:
    tools: list[Tool] = [ListFiles(roots), ReadFile(roots), SearchFiles(roots), WriteFile(roots)]
    return [*tools, RunCommand(roots)] if allow_commands else tools
