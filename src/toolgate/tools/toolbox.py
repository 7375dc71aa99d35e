"""The server's tools as one run may use them: what is offered, whose a call is, and what became of it.

This is where the loop's words (calls and results of a conversation) meet the tools' words (invocations and outputs).
"""

import difflib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from toolgate.conversation.events import ToolProgress
from toolgate.conversation.message import ApprovalRequest, Text, ToolCall, ToolResult
from toolgate.conversation.stock import Stock
from toolgate.tools.runner import Consent, Runner, Waiting, invocation
from toolgate.tools.tool import Approvals, Output, Progress, Stance, Tool


class Shelf(Protocol):
    """The tools of a run; some may lie behind virtual ones that open them."""

    def offered(self) -> Stock:
        """What the model sees now, in an order that never changes."""

    def is_virtual(self, name: str) -> bool:
        """Whether a call of this name opens something and runs nothing."""

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> Output:
        """Do what a call of a virtual tool asks."""

    def resolve(self, name: str) -> Tool | None:
        """The tool that a call of this name means, put on offer if it was not."""


class Permits(Protocol):
    """Judges every call afresh: what was offered may have changed, gone or been forbidden since."""

    def find(self, name: str) -> Tool | None:
        """The tool that a call of this name may run now."""


class Behalf(Struct, frozen=True):
    """On whose behalf the tools run, and what the request says of consent: by tool name, or under "" for all.

    A `tainted` conversation holds what strangers wrote already.
    """

    caller: str
    session: str
    run: str
    stances: Mapping[str, Stance] = {}
    hold_seconds: float = 0.0
    tainted: bool = False

    def stance(self, name: str) -> Stance | None:
        """What the request demands of this tool."""
        return self.stances.get(name, self.stances.get(""))


class RunToolbox:
    """A shelf of tools in the hands of one run."""

    def __init__(self, shelf: Shelf, permits: Permits, runner: Runner, approvals: Approvals, behalf: Behalf) -> None:
        self._shelf = shelf
        self._permits = permits
        self._runner = runner
        self._approvals = approvals
        self._behalf = behalf
        self._waited = 0.0
        self._tainted = behalf.tainted  # strangers may have written what the model has read

    def offered(self) -> Stock:
        """What the model is offered now."""
        return self._shelf.offered()

    def owns(self, name: str) -> bool:
        """Whether the name is one of the server's tools."""
        return self._shelf.is_virtual(name) or self._permits.find(name) is not None

    def may_ask(self, name: str) -> bool:
        """Whether the tool's policy, or the request, may want a person's consent."""
        tool = self._permits.find(name)
        if tool is None or self._shelf.is_virtual(name):
            return False
        wish = self._behalf.stance(name)
        return wish == "ask" or self._approvals.stance(tool.spec, self._behalf.caller) == "ask"

    def is_traceless(self, name: str) -> bool:
        """Whether it only reads; of an unknown tool nothing runs at all."""
        tool = self._permits.find(name)
        return tool is None or tool.spec.annotations.read_only

    def is_repeatable(self, name: str) -> bool:
        """Whether running it twice does no more than once; of an unknown tool nothing runs at all."""
        tool = self._permits.find(name)
        return tool is None or tool.spec.annotations.repeatable

    def waited(self) -> float:
        """The seconds that people took."""
        return self._waited

    async def run(
        self, call: ToolCall, tell: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequest:
        """What became of the call."""
        if self._shelf.is_virtual(call.name):
            return result(call, self._shelf.open(call.name, _arguments(call)))
        self._shelf.resolve(call.name)
        tool = self._permits.find(call.name)
        if tool is None:
            return ToolResult(call.id, (Text(self._unknown(call.name)),), True, call.name)

        def report(progress: Progress) -> None:
            tell(ToolProgress(call.id, progress.message, progress.done, progress.total))

        behalf = self._behalf
        asked = invocation(call.id, call.arguments, behalf.caller, behalf.session, report)
        stance = behalf.stance(call.name)
        consent = Consent(behalf.run, stance, behalf.hold_seconds, self._tainted, self._approvals)
        outcome = await self._runner.run(tool, asked, consent, starting, self._note_wait)
        self._tainted = self._tainted or tool.spec.annotations.open_world
        if isinstance(outcome, Waiting):
            return ApprovalRequest(outcome.approval, call)
        return result(call, outcome)

    def _note_wait(self, seconds: float) -> None:
        self._waited += seconds

    def _unknown(self, name: str) -> str:
        names = [tool.name for tool in self._shelf.offered()]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(names[:20]) or 'none'}."
        return f"There is no tool {name[:100]!r}. {hint}"


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return value if type(value) is dict else {}


def result(call: ToolCall, output: Output) -> ToolResult:
    """What a call gave, as a part of the conversation: data without words is put in words for the model."""
    content = output.content
    if not content:
        text = "" if output.structured is None else msgspec.json.encode(output.structured).decode()
        content = (Text(text or "The tool ran and gave no output."),)
    extra: dict[str, dict[str, Any]] = {}
    if output.structured is not None or output.meta:
        extra = {"mcp": {"structuredContent": output.structured, "_meta": output.meta}}
    return ToolResult(call.id, content, output.is_error, call.name, extra)
