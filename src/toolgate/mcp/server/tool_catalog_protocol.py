"""The port through which the MCP server sees the registry of tools.

The implementation decides which tools a caller sees, checks arguments, asks for approval and enforces time limits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from toolgate.auth.authenticator import Caller
from toolgate.tools.tool import OnChange, ReportProgress, ServerToolDefinition, ToolOutput


class ToolCatalog(Protocol):
    """The registry as one caller sees it."""

    async def settled(self) -> None:
        """Wait, for a bounded time, until every source has brought its tools or failed to for the first time."""

    def tools(self, caller: Caller) -> Sequence[ServerToolDefinition]:
        """List the tools that the caller may use now, in a fixed order; never private ones or those whose `when` fails."""

    def find(self, caller: Caller, name: str) -> ServerToolDefinition | None:
        """Return the tool of that name, if `tools` would list it to the caller."""

    async def call(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], text: str, report: ReportProgress, session: str
    ) -> ToolOutput:
        """Check the arguments, wait for an approval where one is needed, and run the tool.

        NotFound if there is no such tool. ToolCallFailed carries a message for the model, also for arguments that break
        the schema and for a denied approval. Cancelling the task cancels the call. `report` must be called in the event
        loop's thread; `session` is empty where a client has none.
        """

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Call `on_change` whenever `tools` may have changed, until the returned function is called."""
