"""The built-in tools: the time, arithmetic, the web, and, where granted, files and commands.

They are also examples for authors: each is a `ServerToolDefinition` and a class with `prepare` and `invoke`.
"""

from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.builtin.calculator import CalculatorTool
from toolgate.tools.builtin.clock import ClockTool
from toolgate.tools.builtin.command import CommandTool
from toolgate.tools.builtin.fetch import FetchTool
from toolgate.tools.builtin.granted_folders import GrantedFolders
from toolgate.tools.builtin.read_files import ListFilesTool, ReadFileTool
from toolgate.tools.builtin.search_files import SearchFilesTool
from toolgate.tools.builtin.write_file import WriteFileTool
from toolgate.tools.egress import EgressHttpClient
from toolgate.tools.tool import OnChange, Tool

NAMES = frozenset(
    {"clock", "calculator", "fetch", "list_files", "read_file", "search_files", "write_file", "run_command"}
)


class BuiltinSource:
    """Brings the built-in tools; files only from `roots`, commands only if allowed, and only in a root."""

    name = "builtin"
    problem: str | None = None

    def __init__(
        self,
        roots: Sequence[Path] = (),
        *,
        http: EgressHttpClient | None = None,
        allow_commands: bool = False,
        disabled: frozenset[str] = frozenset(),
        protected: Sequence[Path] = (),
    ) -> None:
        """Raises ValueError for a root that is no folder or a disabled name that no tool has.

        `protected` are the server's own files and folders (its settings, database, tools), which no tool may touch.
        """
        if disabled - NAMES:
            raise ValueError(f"there is no built-in tool called {', '.join(sorted(disabled - NAMES))}")
        tools: list[Tool] = [ClockTool(), CalculatorTool()]
        if http is not None:
            tools.append(FetchTool(http))
        if roots:
            folders = GrantedFolders(roots, protected)
            tools += [ListFilesTool(folders), ReadFileTool(folders), SearchFilesTool(folders), WriteFileTool(folders)]
            tools += [CommandTool(folders)] if allow_commands else []
        self.tools: Sequence[Tool] = tuple(tool for tool in tools if tool.spec.name not in disabled)

    async def open(self, on_change: OnChange) -> None:
        """Open nothing; the tools never change."""

    async def aclose(self) -> None:
        """Close nothing."""
