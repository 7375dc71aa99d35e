"""A source of tools that never change."""

from collections.abc import Sequence

from toolgate.tools.tool import OnChange, Tool


class StaticSource:
    """Brings the tools that it is given."""

    problem: str | None = None

    def __init__(self, name: str, tools: Sequence[Tool]) -> None:
        self.name = name
        self.tools = tools

    async def open(self, on_change: OnChange) -> None:
        """Open nothing."""

    async def aclose(self) -> None:
        """Close nothing."""
