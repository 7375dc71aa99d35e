"""Let a run with server tools survive its process: a journal of steps, and approvals that are asked for once.

Knows tools, approvals and steps. It must not know dialects or what is sent to a client.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.history import unanswered_calls
from toolgate.engine.ports import RunJournal
from toolgate.engine.tool_loop import EarlierAttempts
from toolgate.runs.journal import DurableRunJournal
from toolgate.runs.step_records import CallRerunApprovedStep, DurableStepLog, encode_step
from toolgate.runs.timeline_recorder import RunTimeline
from toolgate.tools.runner import new_invocation
from toolgate.tools.tool import (
    CallApprovalOutcome,
    CallApprovals,
    CallPreview,
    ProposedCall,
    ServerToolDefinition,
    Stance,
    Tool,
)

# How long a durable run waits for an approval: as long as that is pending, since only a row is needed to wait.
HOLD_SECONDS = 30 * 86_400.0

_TITLE = "Run it again?"
_QUESTION = (
    "The server stopped while this call was running, so that it may or may not have taken effect. "
    "Approve to run it again; deny to tell the model that its outcome is unknown."
)


class ApprovalsWithRecordedUse(CallApprovals, Protocol):
    """Approvals that store which call has used them."""

    async def used(self, query: ProposedCall) -> CallApprovalOutcome | None:
        """Return the approval that this very call of this run has used already."""


class DurableRunContext(Struct, frozen=True):
    """One attempt at a run that survives its process: what earlier ones did, and where this one writes.

    `mark` stores all frames that were sent and counts them, `check` raises RunLeaseLost if another node has the run, and
    `set_waiting` stores whether the run waits for an approval. With `ask_again`, a person decides about calls of unknown
    outcome. The `timeline` shows the run to people.
    """

    run: str
    history: EarlierAttempts
    resumed: bool
    steps: DurableStepLog
    mark: Callable[[], Awaitable[int]]
    check: Callable[[], Awaitable[None]]
    set_waiting: Callable[[bool], Awaitable[None]]
    ask_again: bool = True
    timeline: RunTimeline | None = None

    def journal(self, turns: RunJournal) -> DurableRunJournal:
        """Return a journal of steps that leaves the end of the run to the usual journal."""
        return DurableRunJournal(self.steps, turns, self.mark, self.check)

    def approvals(self, approvals: ApprovalsWithRecordedUse) -> "DurableApprovals":
        """Return the approvals as this run uses them."""
        pending = {call.id for call in unanswered_calls(self.history.messages)} if self.resumed else set()
        return DurableApprovals(approvals, pending, self.set_waiting)

    def merge(self, known: EarlierAttempts) -> EarlierAttempts:
        """Return what earlier attempts did, together with what is known of the request."""
        return replace(self.history, started=known.started | self.history.started, unknown=known.unknown)

    async def with_repeated_calls(
        self,
        history: EarlierAttempts,
        approvals: "DurableApprovals",
        find: Callable[[str], Tool | None],
        caller: str,
        session: str,
    ) -> EarlierAttempts:
        """Return the history without those calls of unknown outcome that a person wants to be run again."""
        # Also for calls that no policy would ask about: only a person can find out whether the effect took place.
        again: set[str] = set()
        for call in unanswered_calls(history.messages):
            tool = find(call.name) if self.ask_again and call.id in history.started else None
            if tool is None:
                continue
            invocation = new_invocation(call.id, call.arguments, caller, session)
            preparation = CallPreview(title=_TITLE, question=_QUESTION)
            if await approvals.ask_again(ProposedCall(tool.spec, invocation, self.run, preparation, "ask")):
                # Stored at once, so that the next attempt does not ask a second time.
                await self.steps.keep("again", encode_step(CallRerunApprovedStep(call.id)))
                again.add(call.id)
        return replace(history, started=history.started - again)


class DurableApprovals:
    """The approvals as a run that survives its process uses them (`toolgate.tools.tool.CallApprovals`)."""

    def __init__(
        self,
        approvals: ApprovalsWithRecordedUse,
        pending: set[str],
        set_waiting: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        """`pending` calls may have used their approval in an earlier attempt without having started."""
        self._approvals = approvals
        self._pending = pending
        self._set_waiting = set_waiting
        self._client_questions: set[str] = set()  # the client itself answers these, after the response has ended

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        return self._approvals.stance(spec, caller, requested)

    async def decide(self, query: ProposedCall) -> CallApprovalOutcome:
        """Return the verdict; an approval that was used by a call that did not start is still good for it."""
        # `decide` consumes an approval. If the process died between that and the start of the call, the approval is
        # gone and the call has not run: the person must not be asked again.
        if query.invocation.call_id in self._pending:
            self._pending.discard(query.invocation.call_id)
            if (used := await self._approvals.used(query)) is not None:
                return used
        verdict = await self._approvals.decide(query)
        if query.stance == "ask" and verdict.approval is not None:
            self._client_questions.add(verdict.approval)
        return verdict

    async def wait(self, approval: str, seconds: float) -> bool:
        """Return whether the approval was answered; the run is stored as waiting meanwhile."""
        if approval in self._client_questions:
            return False
        if self._set_waiting is None:
            return await self._approvals.wait(approval, seconds)
        # Not in `finally`: a run whose wait is cut off, by a stop of the server, is still waiting in the database.
        await self._set_waiting(True)
        answered = await self._approvals.wait(approval, seconds)
        await self._set_waiting(False)
        return answered

    async def ask_again(self, query: ProposedCall) -> bool:
        """Return whether a person wants a call of unknown outcome to be run again; no policy can decide that."""
        self._pending.discard(query.invocation.call_id)
        verdict = await self._approvals.decide(query)
        # A changed policy puts an open question out of scope; `decide` then gives another one to wait for.
        while verdict.stance == "pending" and verdict.approval is not None:
            if not await self.wait(verdict.approval, HOLD_SECONDS):
                break
            verdict = await self._approvals.decide(query)
        if verdict.stance != "allow" or verdict.approval is None:  # an `allow` of the policy is no person's answer
            return False
        self._pending.add(query.invocation.call_id)  # the call itself finds this approval used, and need not ask
        return True
