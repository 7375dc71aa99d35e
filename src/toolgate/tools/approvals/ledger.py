"""Where questions and grants are kept. Every method is one step that happens whole or not at all, also between processes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolgate.tools.approvals.record import Approval, Grant, Order, State


class Ledger(Protocol):
    """Keeps approvals and grants; once a method returned, what it did survives a crash.

    Times are seconds since 1970 and are given by the caller. `caller` None means everybody's.
    """

    async def claim(self, asked: Approval, most: int, now: float) -> Approval | None:
        """The approval that settles this question, if there is one; else the question itself, kept from now on.

        An approved one is used up by this. A denied one is given to one run, an expired one to its own run.
        Those of the same caller and tool that are bound to another definition or policy go out of scope first.
        None if `most` questions of this run were put and not approved.
        """

    async def use(self, digest: str, now: float) -> Approval | None:
        """The approval given to this very call, which is used up by this; None if there is none."""

    async def answer(self, answered: Approval, grant: Grant | None, now: float) -> bool:
        """Keep an answer and the grant that comes with it; False if the approval was no longer pending."""

    async def find(self, id: str, now: float, *, caller: str | None = None) -> Approval | None:
        """The approval of this id as it stands now, if it is this caller's; None means whosever it is."""

    async def approvals(
        self, now: float, *, caller: str | None = None, state: State | None = None, limit: int = 1000
    ) -> Sequence[Approval]:
        """Approvals, newest first."""

    async def page(
        self,
        now: float,
        *,
        wanted: Mapping[str, str],
        order: Order,
        after: str | None,
        before: str | None,
        limit: int,
    ) -> Sequence[Approval] | None:
        """So many approvals behind `after` or ahead of `before`; None if that is not among those that are wanted."""

    async def grants_page(
        self, *, wanted: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[Grant] | None:
        """So many grants behind `after` or ahead of `before`; None if that is not among those that are wanted."""

    async def used(self, caller: str, run: str, call: str, digest: str) -> Approval | None:
        """The approval that this very call of this run has used up."""

    async def deny_all(
        self, reason: str | None, by: str, now: float, *, caller: str | None, run: str | None
    ) -> Sequence[str]:
        """Deny everything pending, of one run or of all; the ids of what was denied."""

    async def void(self, id: str) -> bool:
        """Put an open approval out of scope; False if it was closed already."""

    async def is_granted(
        self, caller: str, tool: str, source: str, spec: str, session: str, workspace: str, since: float
    ) -> bool:
        """Whether a grant covers this tool as it is defined now; those of a session count if made after `since`."""

    async def grants(self, caller: str | None = None) -> Sequence[Grant]:
        """Grants, newest first."""

    async def reset(self, caller: str | None = None) -> int:
        """Forget all grants and let no approval given so far be used; how many grants there were."""
