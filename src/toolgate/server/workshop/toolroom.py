"""The registry behind the MCP door: what a caller may see, and the one way in which it may have a tool run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgate.conversation.errors import NotFound
from toolgate.conversation.ids import new_call_id
from toolgate.server.callers.auth import Caller
from toolgate.server.workshop.tooling import Tooling
from toolgate.tools.registry import Registry
from toolgate.tools.runner import Consent, Runner, Waiting, invocation
from toolgate.tools.selection import EVERYTHING, NOTHING, Rights, Selection
from toolgate.tools.tool import OnChange, Output, Tell, Tool, ToolFailure, ToolSpec


class Toolroom:
    """The tools as callers of the MCP server see them."""

    def __init__(self, registry: Registry, runner: Runner, tooling: Tooling) -> None:
        """`tooling` holds the terms in force."""
        self._registry = registry
        self._runner = runner
        self._tooling = tooling

    def tools(self, caller: Caller) -> Sequence[ToolSpec]:
        """Every tool the caller may use now."""
        return [tool.spec for tool in self._selection(caller).tools]

    def find(self, caller: Caller, name: str) -> ToolSpec | None:
        """The tool of that name, if the caller may use it."""
        tool = self._found(caller, name)
        return tool.spec if tool else None

    async def call(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], text: str, tell: Tell, session: str
    ) -> Output:
        """Check, ask, run; ToolFailure if a person did not answer in time."""
        tool = self._found(caller, name)
        if tool is None:
            raise NotFound(f"There is no tool {name[:100]!r}.", param="name", code="unknown_tool")
        asked = invocation(new_call_id(), text, caller.name, session, tell)
        outcome = await self._runner.run(
            tool, asked, Consent(asked.call_id, hold_seconds=self._tooling.terms.hold_seconds)
        )
        if isinstance(outcome, Waiting):
            raise ToolFailure(
                f"The call of {name} waits for approval {outcome.approval} and was not run. "
                "Once it is approved, make the same call again."
            )
        return outcome

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Be told of changes."""
        return self._registry.subscribe(on_change)

    def _found(self, caller: Caller, name: str) -> Tool | None:
        tool = self._registry.get(name)
        return tool if tool is not None and self._selection(caller, name).permits(name) else None

    def _selection(self, caller: Caller, name: str = "") -> Selection:
        context = {**self._tooling.terms.context, "dialect": "mcp", "caller": caller.name}
        rights = [Rights(caller.allow_tools, caller.block_tools)]
        if name:
            return Selection(self._registry, NOTHING, context, rights, [name])
        return Selection(self._registry, EVERYTHING, context, rights)
