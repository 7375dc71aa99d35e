"""What a run with server tools needs to outlive its process: a journal of steps, and consent that is not asked for twice.

Knows tools, approvals and steps. It must not know dialects or what is told to a client.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.history import unanswered
from toolgate.conversation.message import ToolCall
from toolgate.engine.ports import Journal
from toolgate.engine.rounds import Past
from toolgate.runs.journal import StepJournal
from toolgate.runs.steps import Again, Steps, write
from toolgate.tools.runner import invocation
from toolgate.tools.tool import Approvals, Asked, Preparation, Stance, Tool, ToolSpec, Verdict

HOLD_SECONDS = 30 * 86_400.0
"""A run waits for as long as its question stands: it needs nothing but a row for that."""

_TITLE = "Run it again?"
_QUESTION = (
    "The server stopped while this call was running, so that it may or may not have taken effect. "
    "Approve to run it again; deny to tell the model that its outcome is unknown."
)


class Desk(Approvals, Protocol):
    """Approvals that remember what they were used for."""

    async def used(self, asked: Asked) -> Verdict | None:
        """The consent that this very call of this run was given and that it has used up already."""


class Lasting(Struct, frozen=True):
    """One attempt at a run that outlives its process: what earlier ones did, and where this one writes.

    `mark` counts what was told, `check` raises LeaseLost if the run is another's, `turn` says that a person is waited for.
    With `asks`, a person decides about calls of unknown outcome.
    """

    run: str
    past: Past
    resumed: bool
    steps: Steps
    mark: Callable[[], Awaitable[int]]
    check: Callable[[], Awaitable[None]]
    turn: Callable[[bool], Awaitable[None]]
    asks: bool = True

    def journal(self, behind: Journal) -> StepJournal:
        """A journal of steps, with the usual one behind it."""
        return StepJournal(self.steps, behind, self.mark, self.check)

    def approvals(self, desk: Desk) -> "LastingApprovals":
        """The desk as this run uses it."""
        pending = {call.id for call in unanswered(self.past.messages)} if self.resumed else set()
        return LastingApprovals(desk, pending, self.turn)

    def over(self, known: Past) -> Past:
        """What earlier attempts did, on top of what is known of the request."""
        return replace(self.past, started=known.started | self.past.started, strange=known.strange)

    async def settled(
        self, past: Past, approvals: "LastingApprovals", find: Callable[[str], Tool | None], caller: str, session: str
    ) -> Past:
        """The past without those calls of unknown outcome that a person wants to be run again."""
        again: set[str] = set()
        for call in unanswered(past.messages):
            tool = find(call.name) if self.asks and call.id in past.started else None
            if tool is not None and await self._is_wanted(approvals, tool, call, caller, session):
                await self.steps.keep("again", write(Again(call.id)))
                again.add(call.id)
        return replace(past, started=past.started - again)

    async def _is_wanted(
        self, approvals: "LastingApprovals", tool: Tool, call: ToolCall, caller: str, session: str
    ) -> bool:
        preparation = Preparation(title=_TITLE, question=_QUESTION)
        asked = Asked(tool.spec, invocation(call.id, call.arguments, caller, session), self.run, preparation, "ask")
        return await approvals.ask_again(asked)


class LastingApprovals:
    """The desk in the hands of a run that outlives its process (`toolgate.tools.tool.Approvals`)."""

    def __init__(self, desk: Desk, pending: set[str], turn: Callable[[bool], Awaitable[None]] | None = None) -> None:
        """`pending` calls may have used up their consent in an earlier attempt without having begun."""
        self._desk = desk
        self._pending = pending
        self._turn = turn
        self._theirs: set[str] = set()  # questions to the client itself, with which a response ends

    def stance(self, spec: ToolSpec, caller: str) -> Stance:
        """What the policy says of the tool."""
        return self._desk.stance(spec, caller)

    async def decide(self, asked: Asked) -> Verdict:
        """The verdict; consent that was used up for a call that did not begin is still good for it."""
        if asked.invocation.call_id in self._pending:
            self._pending.discard(asked.invocation.call_id)
            if (used := await self._desk.used(asked)) is not None:
                return used
        verdict = await self._desk.decide(asked)
        if asked.stance == "ask" and verdict.approval is not None:
            self._theirs.add(verdict.approval)
        return verdict

    async def wait(self, approval: str, seconds: float) -> bool:
        """Whether the approval was answered; the row of the run says meanwhile that it waits."""
        if approval in self._theirs:
            return False
        if self._turn is None:
            return await self._desk.wait(approval, seconds)
        await self._turn(True)
        answered = await self._desk.wait(approval, seconds)
        await self._turn(False)
        return answered

    async def ask_again(self, asked: Asked) -> bool:
        """Whether a person wants a call of unknown outcome to be run again; nothing else can want that."""
        self._pending.discard(asked.invocation.call_id)
        verdict = await self._desk.decide(asked)
        while verdict.stance == "pending" and verdict.approval is not None:
            if not await self.wait(verdict.approval, HOLD_SECONDS):
                break
            verdict = await self._desk.decide(asked)
        if verdict.stance != "allow" or verdict.approval is None:
            return False
        self._pending.add(asked.invocation.call_id)
        return True
