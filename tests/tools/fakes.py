"""Fake tools and sources for tests of the registry."""

from collections.abc import Iterable
from typing import Any

from toolgate.conversation.message import Text
from toolgate.tools.tool import CallPreview, OnChange, ServerToolDefinition, ToolCallInput, ToolOutput


class FakeTool:
    """Answers with its own name and that of the call."""

    def __init__(self, spec: ServerToolDefinition) -> None:
        self.spec = spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        return CallPreview(f"about to run {self.spec.name}")

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        return ToolOutput((Text(f"{self.spec.source} {self.spec.name} ran"),))


class FakeSource:
    """Brings the given tools; `bring` changes them."""

    def __init__(self, name: str, tools: Iterable[FakeTool] = (), problem: str | None = None) -> None:
        self.name = name
        self.tools = tuple(tools)
        self.problem = problem
        self.closed = False
        self._on_change: OnChange = lambda: None

    async def open(self, on_change: OnChange) -> None:
        self._on_change = on_change

    async def aclose(self) -> None:
        self.closed = True

    def bring(self, *tools: FakeTool, problem: str | None = None) -> None:
        self.tools, self.problem = tools, problem
        self._on_change()


def tool(name: str, source: str = "python", description: str = "", **fields: Any) -> FakeTool:
    return FakeTool(
        ServerToolDefinition(name=name, source=source, description=description or f"Does {name}.", **fields)
    )


def source(name: str, *names: str) -> FakeSource:
    return FakeSource(name, [tool(one, name) for one in names])


WORDS = (
    "read",
    "write",
    "file",
    "search",
    "issue",
    "list",
    "delete",
    "create",
    "update",
    "user",
    "order",
    "ticket",
    "page",
)


def many(count: int, source: str = "mcp/big") -> list[FakeTool]:
    """Tools with names, descriptions and tags that repeat as real ones do."""
    return [
        tool(
            f"big_{WORDS[number % 7]}_{WORDS[number % 11]}_{number:04}",
            source,
            " ".join([WORDS[(number * step) % len(WORDS)] for step in range(1, 25)]),
            tags=(WORDS[number % 13], WORDS[number % 5]),
            when="mode == work" if number % 5 == 0 else None,
            input_schema={
                "type": "object",
                "properties": {"path": {"type": "string"}, "count": {"type": "integer", "maximum": number}},
                "required": ["path"],
            },
        )
        for number in range(count)
    ]
