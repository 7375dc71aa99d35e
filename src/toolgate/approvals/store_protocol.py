"""The storage that approvals need, as a Protocol. Every method is atomic, between processes too."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolgate.approvals.record import Approval, Order, StandingApproval, State


class ApprovalStoreProtocol(Protocol):
    """Stores approvals and grants; what a method did when it returned survives a crash.

    Times are seconds since 1970 and are given by the service. `caller=None` means all callers.
    """

    async def claim(self, new: Approval, limit: int, now: float) -> Approval | None:
        """Return the stored approval that decides about the same call, else store `new` and return it.

        An approved one is consumed. A denied one counts for one run, an expired one for its own run.
        Approvals of the same caller and tool that are bound to another definition or policy go out of scope first.
        Returns None if this run has `limit` approvals that were not given.
        """

    async def use(self, digest: str, now: float) -> Approval | None:
        """Consume the approval that was given to the call with this digest; None if there is none."""

    async def answer(self, answered: Approval, grant: StandingApproval | None, now: float) -> bool:
        """Store a decision and its grant; False if the approval was no longer pending."""

    async def find(self, id: str, now: float, *, caller: str | None = None) -> Approval | None:
        """Find the approval with this id in its present state."""

    async def approvals(
        self, now: float, *, caller: str | None = None, state: State | None = None, limit: int = 1000
    ) -> Sequence[Approval]:
        """List approvals, newest first."""

    async def page(
        self,
        now: float,
        *,
        filters: Mapping[str, str],
        order: Order,
        after: str | None,
        before: str | None,
        limit: int,
    ) -> Sequence[Approval] | None:
        """List at most `limit` approvals after or before a cursor; None if the cursor does not pass the filters."""

    async def grants_page(
        self, *, filters: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[StandingApproval] | None:
        """List at most `limit` grants after or before a cursor; None if the cursor does not pass the filters."""

    async def used(self, caller: str, run: str, call: str, digest: str) -> Approval | None:
        """Find the approval that this very call of this run has consumed."""

    async def deny_all(
        self, reason: str | None, by: str, now: float, *, caller: str | None, run: str | None
    ) -> Sequence[str]:
        """Deny all pending approvals, of one run or of all, and return their ids."""

    async def void(self, id: str) -> bool:
        """Put an open approval out of scope; False if it was closed already."""

    async def is_granted(
        self, caller: str, tool: str, source: str, spec: str, session: str, workspace: str, since: float
    ) -> bool:
        """Whether a grant covers this tool as it is defined now; grants for a session count if made after `since`."""

    async def grants(self, caller: str | None = None) -> Sequence[StandingApproval]:
        """List grants, newest first."""

    async def reset(self, caller: str | None = None) -> int:
        """Delete all grants, let no approval given so far be used, and return how many grants there were."""
