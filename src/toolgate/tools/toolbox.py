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
from toolgate.conversation.request import ToolDef
from toolgate.tools.runner import Consent, Runner, Waiting, invocation
from toolgate.tools.tool import Approvals, Output, Progress, Stance, Tool, ToolSpec


class Shelf(Protocol):
    """The tools that a run may use; some may lie behind others that open them."""

    def offered(self) -> tuple[ToolSpec, ...]:
        """What the model sees now, in an order that never changes."""

    def find(self, name: str) -> Tool | None:
        """The tool of this name, if the run may use it, be it offered now or not."""


class Rights(Struct, frozen=True):
    """For whom the tools run, and what the request says of consent: by tool name, or under "" for all."""

    caller: str
    session: str
    run: str
    stances: Mapping[str, Stance] = {}
    hold_seconds: float = 0.0

    def stance(self, name: str) -> Stance | None:
        """What the request demands of this tool."""
        return self.stances.get(name, self.stances.get(""))


class RunToolbox:
    """A shelf of tools in the hands of one run."""

    def __init__(self, shelf: Shelf, runner: Runner, approvals: Approvals, rights: Rights) -> None:
        self._shelf = shelf
        self._runner = runner
        self._approvals = approvals
        self._rights = rights
        self._waited = 0.0
        self._defs: dict[int, ToolDef] = {}

    def offered(self) -> tuple[ToolDef, ...]:
        """What the model is offered now."""
        return tuple([ToolDef(spec.name, spec.description, spec.input_schema) for spec in self._shelf.offered()])

    def owns(self, name: str) -> bool:
        """Whether the name is one of the server's tools."""
        return self._shelf.find(name) is not None

    def may_ask(self, name: str) -> bool:
        """Whether the tool's policy, or the request, may want a person's consent."""
        tool = self._shelf.find(name)
        if tool is None:
            return False
        wish = self._rights.stance(name)
        return wish == "ask" or self._approvals.stance(tool.spec, self._rights.caller) == "ask"

    def is_repeatable(self, name: str) -> bool:
        """Whether running it twice does no more than once; of an unknown tool nothing runs at all."""
        tool = self._shelf.find(name)
        return tool is None or tool.spec.annotations.repeatable

    def waited(self) -> float:
        """The seconds that people took."""
        return self._waited

    async def run(
        self, call: ToolCall, tell: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequest:
        """What became of the call."""
        tool = self._shelf.find(call.name)
        if tool is None:
            return ToolResult(call.id, (Text(self._unknown(call.name)),), True, call.name)

        def report(progress: Progress) -> None:
            tell(ToolProgress(call.id, progress.message, progress.done, progress.total))

        rights = self._rights
        asked = invocation(call.id, call.arguments, rights.caller, rights.session, report)
        consent = Consent(rights.run, rights.stance(call.name), rights.hold_seconds)
        outcome = await self._runner.run(tool, asked, consent, starting, self._note_wait)
        if isinstance(outcome, Waiting):
            return ApprovalRequest(outcome.approval, call)
        return result(call, outcome)

    def _note_wait(self, seconds: float) -> None:
        self._waited += seconds

    def _unknown(self, name: str) -> str:
        names = [spec.name for spec in self._shelf.offered()]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(names[:20]) or 'none'}."
        return f"There is no tool {name[:100]!r}. {hint}"


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
