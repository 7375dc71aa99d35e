"""Offer the registry's tools to callers of the MCP server: list those that a caller may use, and run them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgate.auth.authenticator import Caller
from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.errors import NotFound
from toolgate.tools.execution.prepare_run import ToolRunPreparer
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.runner import ApprovalPendingOutcome, CallApprovalOptions, ToolRunner, new_invocation
from toolgate.tools.selection import EVERYTHING, NOTHING, ToolRights, ToolSelection
from toolgate.tools.tool import OnChange, ReportProgress, ServerToolDefinition, Tool, ToolCallFailed, ToolOutput


class RegistryToolCatalog:
    """The tools of the registry, as the MCP server offers them (`toolgate.mcp.server.tool_catalog_protocol.ToolCatalog`)."""

    def __init__(self, registry: ToolRegistry, runner: ToolRunner, tool_runs: ToolRunPreparer) -> None:
        """`tool_runs` has the defaults in force."""
        self._registry = registry
        self._runner = runner
        self._tool_runs = tool_runs

    async def settled(self) -> None:
        await self._registry.settled()

    def tools(self, caller: Caller) -> Sequence[ServerToolDefinition]:
        return [tool.spec for tool in self._selection(caller).tools]

    def find(self, caller: Caller, name: str) -> ServerToolDefinition | None:
        tool = self._found(caller, name)
        return tool.spec if tool else None

    async def call(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], text: str, report: ReportProgress, session: str
    ) -> ToolOutput:
        """Run a tool after its approval; ToolCallFailed if that was not given in time."""
        tool = self._found(caller, name)
        if tool is None:
            raise NotFound(f"There is no tool {name[:100]!r}.", param="name", code="unknown_tool")
        invocation = new_invocation(new_call_id(), text, caller.name, session, report)
        outcome = await self._runner.run(
            tool,
            invocation,
            CallApprovalOptions(invocation.call_id, hold_seconds=self._tool_runs.defaults.hold_seconds),
        )
        if isinstance(outcome, ApprovalPendingOutcome):
            raise ToolCallFailed(
                f"The call of {name} waits for approval {outcome.approval} and was not run. "
                "Once it is approved, make the same call again."
            )
        return outcome

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        return self._registry.subscribe(on_change)

    def _found(self, caller: Caller, name: str) -> Tool | None:
        tool = self._registry.get(name)
        return tool if tool is not None and self._selection(caller, name).permits(name) else None

    def _selection(self, caller: Caller, name: str = "") -> ToolSelection:
        context = self._tool_runs.context_of(caller) | {"dialect": "mcp"}
        rights = [ToolRights(caller.allow_tools, caller.block_tools)]
        if name:
            return ToolSelection(self._registry, NOTHING, context, rights, [name])
        return ToolSelection(self._registry, EVERYTHING, context, rights)
