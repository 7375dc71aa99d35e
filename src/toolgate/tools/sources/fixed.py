"""Tools that are simply there."""

from collections.abc import Sequence

from toolgate.tools.tool import OnChange, Tool


class FixedSource:
    """A source whose tools never change."""

    trouble: str | None = None

    def __init__(self, name: str, tools: Sequence[Tool]) -> None:
        self.name = name
        self.tools = tools

    async def open(self, on_change: OnChange) -> None:
        """Nothing has to be opened."""

    async def aclose(self) -> None:
        """Nothing was opened."""
