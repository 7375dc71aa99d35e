"""What an MCP server needs of the registry, and all that it knows of it.

Whoever stands behind the door decides what a caller may see, checks arguments, asks for approval and keeps time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from toolgate.server.callers.auth import Caller
from toolgate.tools.tool import OnChange, Output, Tell, ToolSpec


class Door(Protocol):
    """The registry as one caller sees it."""

    def tools(self, caller: Caller) -> Sequence[ToolSpec]:
        """Every tool the caller may use now, always in the same order; never private ones or those whose `when` fails."""

    def find(self, caller: Caller, name: str) -> ToolSpec | None:
        """The tool of that name, if `tools` would list it to the caller."""

    async def call(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], text: str, tell: Tell, session: str
    ) -> Output:
        """Check the arguments, ask for approval, waiting for it up to a limit, and run the tool.

        NotFound if there is no such tool; ToolFailure says what went wrong in words for a model, arguments that break
        the schema and a refused approval included. Cancelling the task cancels the call. `tell` must be called in the
        event loop's thread; `session` is empty where a client has none.
        """

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Call `on_change` whenever `tools` may give something new, until the returned function is called."""
