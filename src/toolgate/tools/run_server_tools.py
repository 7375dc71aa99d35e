"""The server's tools as one run may use them: which are offered, how calls are treated, and their results.

Translates between the tool loop (calls and results of a conversation) and the runner (invocations and outputs).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.events import ToolProgress
from toolgate.conversation.message import ApprovalRequestPart, Text, ToolCall, ToolResult
from toolgate.conversation.tool_definition_cache import MemoizedTools
from toolgate.engine.ports import CallTraits
from toolgate.tools.runner import ApprovalPendingOutcome, CallApprovalOptions, ToolRunner, new_invocation
from toolgate.tools.similar_names import similar_names
from toolgate.tools.tool import CallApprovals, CallProgressUpdate, Stance, Tool, ToolOutput
from toolgate.tools.virtual_tool_groups import call_arguments

# The extra fields of a result whose tool was not called. No dialect is called so: a client cannot send them.
_OWN = "toolgate"
_NOT_CALLED = {"called": False}


class OfferedToolSet(Protocol):
    """The tools of a run; virtual tools put further ones on offer."""

    def offered(self) -> MemoizedTools:
        """The tools that the model is offered now, in an order that never changes."""

    def is_virtual(self, name: str) -> bool:
        """Whether a call of this name puts tools on offer and runs nothing."""

    async def execute(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolOutput:
        """Execute the call of a virtual tool."""

    def resolve(self, name: str) -> Tool | None:
        """Find the tool of this name and put it on offer if it was not."""


class PermittedToolLookup(Protocol):
    """Checks rights at every call: a tool that was offered may have changed, gone or been forbidden since."""

    def find(self, name: str) -> Tool | None:
        """Find the tool that a call of this name may run now."""


class RunContext(Struct, frozen=True):
    """The run for which tools are called, and its request's demands for approval: by tool name, or under "" for all.

    In a `tainted` conversation the model has already read what strangers wrote. `window` is the window of an editor that
    the client names, empty for any.
    """

    caller: str
    session: str
    run: str
    stances: Mapping[str, Stance] = {}
    hold_seconds: float = 0.0
    tainted: bool = False
    window: str = ""

    def stance(self, name: str) -> Stance | None:
        """What the request demands for this tool."""
        return self.stances.get(name, self.stances.get(""))


class RunServerTools:
    """The tools of one run (`toolgate.engine.ports.RunTools`)."""

    def __init__(
        self,
        tools: OfferedToolSet,
        permissions: PermittedToolLookup,
        runner: ToolRunner,
        approvals: CallApprovals,
        identity: RunContext,
    ) -> None:
        self._tools = tools
        self._permissions = permissions
        self._runner = runner
        self._approvals = approvals
        self._identity = identity
        self._waited_seconds = 0.0
        self._tainted = identity.tainted

    def offered(self) -> MemoizedTools:
        """The tools that the model is offered now."""
        return self._tools.offered()

    def owns(self, name: str) -> bool:
        """Whether the name is one of the server's tools."""
        return self._tools.is_virtual(name) or self._permissions.find(name) is not None

    def rules(self, name: str) -> CallTraits:
        """Decide by the approval policy, the request and the tool's annotations."""
        tool = self._permissions.find(name)
        if tool is None:
            return CallTraits()
        annotations = tool.spec.annotations
        stance = self._approvals.stance(tool.spec, self._identity.caller, self._identity.stance(name))
        may_wait = stance == "ask" and not self._tools.is_virtual(name)
        return CallTraits(may_wait, annotations.repeatable, annotations.read_only)

    def waited_seconds(self) -> float:
        """The seconds that people took to decide."""
        return self._waited_seconds

    async def run(
        self, call: ToolCall, emit: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequestPart:
        """Run the call, or return the approval that it waits for."""
        if self._tools.is_virtual(call.name):
            return result(call, await self._tools.execute(call.name, call_arguments(call)))
        # Models call tools that they remember from a group that is closed by now: that opens the group again.
        self._tools.resolve(call.name)
        tool = self._permissions.find(call.name)
        if tool is None:
            names = [tool.name for tool in self._tools.offered()]
            near = similar_names(call.name, names, count=3)
            hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(names[:20]) or 'none'}."
            text = f"There is no tool {call.name[:100]!r}. {hint}"
            return ToolResult(call.id, (Text(text),), True, call.name)

        def report(progress: CallProgressUpdate) -> None:
            emit(ToolProgress(call.id, progress.message, progress.done, progress.total))

        def add_wait(seconds: float) -> None:
            self._waited_seconds += seconds

        identity = self._identity
        invocation = new_invocation(call.id, call.arguments, identity.caller, identity.session, report)
        invocation = replace(invocation, run=identity.run, window=identity.window)
        stance = identity.stance(call.name)
        consent = CallApprovalOptions(identity.run, stance, identity.hold_seconds, self._tainted, self._approvals)
        outcome = await self._runner.run(tool, invocation, consent, starting, add_wait)
        if isinstance(outcome, ApprovalPendingOutcome):
            return ApprovalRequestPart(outcome.approval, call)
        # The result may hold instructions of strangers; later approvals show that to the person who decides.
        self._tainted = self._tainted or (outcome.called and tool.spec.annotations.open_world)
        return result(call, outcome)


def result(call: ToolCall, output: ToolOutput) -> ToolResult:
    """Turn the output of a call into a part of the conversation; data without text is encoded as text for the model."""
    content = output.content
    if not content:
        text = "" if output.structured is None else msgspec.json.encode(output.structured).decode()
        content = (Text(text or "The tool ran and returned no output."),)
    extra: dict[str, dict[str, Any]] = {}
    if output.structured is not None or output.meta:
        extra = {"mcp": {"structuredContent": output.structured, "_meta": output.meta}}
    if not output.called:
        extra[_OWN] = _NOT_CALLED
    return ToolResult(call.id, content, output.is_error, call.name, extra)


def was_called(result: ToolResult) -> bool:
    """Return whether the tool of a call was called, so that its result may hold text from outside."""
    return result.extra.get(_OWN) != _NOT_CALLED
