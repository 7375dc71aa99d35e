"""Note in the timeline of a run which of its calls wait for a person, and which are denied. Decides nothing by itself."""

from typing import Protocol

from toolgate.engine.ports import CallOutcome
from toolgate.tools.execution.durable import ApprovalsWithRecordedUse
from toolgate.tools.tool import CallApprovalOutcome, ProposedCall, ServerToolDefinition, Stance


class ApprovalWaitObserver(Protocol):
    """Notes which calls wait."""

    def call_waiting(self, call: str, approval: str) -> None:
        """A call waits for this approval."""

    def call_decided(self, call: str) -> None:
        """A call does not wait any more."""

    def call_ended(self, call: str, outcome: CallOutcome) -> None:
        """A call has ended."""


class ObservedApprovals:
    """The approvals of one run (`ApprovalsWithRecordedUse`)."""

    def __init__(self, approvals: ApprovalsWithRecordedUse, waiting: ApprovalWaitObserver) -> None:
        self._approvals = approvals
        self._waiting = waiting

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        return self._approvals.stance(spec, caller, requested)

    async def decide(self, query: ProposedCall) -> CallApprovalOutcome:
        verdict = await self._approvals.decide(query)
        if verdict.stance == "pending":
            self._waiting.call_waiting(query.invocation.call_id, verdict.approval or "")
        elif verdict.stance == "deny":
            self._waiting.call_ended(query.invocation.call_id, "denied")
        else:
            self._waiting.call_decided(query.invocation.call_id)
        return verdict

    async def wait(self, approval: str, seconds: float) -> bool:
        return await self._approvals.wait(approval, seconds)

    async def used(self, query: ProposedCall) -> CallApprovalOutcome | None:
        return await self._approvals.used(query)
