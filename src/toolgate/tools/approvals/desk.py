"""The desk where calls that want to run meet the policy and a person's answers.

Whoever runs a call asks `decide` before every call, waits with `wait` while it is pending, and asks again. Answers come in
through `answer`, from whichever door. It keeps no state but who is waiting: all else is in the ledger, so that an answer
given to another process, or after a restart, is as good as any.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from toolgate.conversation.errors import Forbidden, InvalidRequest, NotFound
from toolgate.tools.approvals.answers import Answer, answered, granted, question, too_late, verdict
from toolgate.tools.approvals.binding import Ambiguous, canonical, spec_digest
from toolgate.tools.approvals.ledger import Ledger
from toolgate.tools.approvals.policy import Policy
from toolgate.tools.approvals.record import Approval, Grant, Level, Order, State
from toolgate.tools.approvals.waiting import Rousing, Waiting, heard
from toolgate.tools.tool import Asked, Stance, ToolSpec, Verdict

POLL_SECONDS = 0.5
"""How soon an answer that another process took is noticed."""

SESSION_SECONDS = 24 * 3600.0
"""The longest that a session is taken to last."""

Announce = Callable[[Approval], None]
Definition = Callable[[str], ToolSpec | None]


class Terms(Struct, frozen=True, kw_only=True):
    """How long questions stand and how many one run may put.

    `hold_seconds` is how long whoever runs a call should wait for an answer. Without a `workspace` none can be granted.
    """

    expiry_seconds: float = 3600.0
    hold_seconds: float = 120.0
    max_pending_per_run: int = 20
    workspace: str = ""


USUAL = Terms()


class Desk:
    """Decides whether calls may run (`toolgate.tools.tool.Approvals`) and takes answers."""

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        *,
        terms: Terms = USUAL,
        announce: Announce | None = None,
        definition: Definition | None = None,
        now: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
        waiting: Rousing | None = None,
    ) -> None:
        """`announce` is told of every new question; `definition` gives a tool as it is now, by its name.

        `waiting` may reach further than this process; an answer of which it does not tell is noticed by polling.
        """
        self.policy = policy
        self.terms = terms
        self._ledger = ledger
        self._announce = announce
        self._definition = definition
        self._now = now
        self._poll_seconds = poll_seconds
        self._waiting = waiting or Waiting()

    def renew(self, policy: Policy, terms: Terms) -> None:
        """From now on this policy holds; what was asked under another goes out of scope."""
        self.policy, self.terms = policy, terms

    def stance(self, spec: ToolSpec, caller: str) -> Stance:
        """What the policy says of the tool before a call of it is known."""
        return self.policy.stance(spec, caller)

    async def decide(self, asked: Asked) -> Verdict:
        """The verdict for this very call; an approval is used up by the `allow` it gives."""
        policy = self.policy
        ruling = policy.rule(asked)
        if ruling.stance == "allow":
            return Verdict("allow")
        if ruling.stance == "deny":
            return Verdict("deny", reason=f"{asked.spec.name} may not be called: {ruling.why}.")
        try:
            arguments = canonical(asked.invocation.text)
        except Ambiguous as error:
            return Verdict("deny", reason=f"Nobody can be asked about these arguments: {error}.")
        now = self._now()
        expires = now + self.terms.expiry_seconds
        new = question(asked, arguments, spec_digest(asked.spec), policy.version, ruling.why, now, expires)
        if not ruling.fresh:
            # The approval of this very call is used up before a grant is, lest it lie around for another time.
            used = await self._ledger.use(new.digest, now)
            if used is not None:
                return verdict(used)
            if await self._is_granted(new):
                return Verdict("allow")
        return await self._put(new)

    async def used(self, asked: Asked) -> Verdict | None:
        """The consent that this very call of this run was given and that it has used up already."""
        try:
            arguments = canonical(asked.invocation.text)
        except Ambiguous:
            return None
        now = self._now()
        same = question(asked, arguments, spec_digest(asked.spec), self.policy.version, "", now, now)
        found = await self._ledger.used(same.caller, same.run, same.call, same.digest)
        return verdict(found) if found is not None else None

    async def wait(self, approval: str, seconds: float) -> bool:
        """Whether the approval was answered within that time, or can be answered no more: the policy may have changed."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        async with self._waiting.heard(approval) as event:
            while True:
                event.clear()
                found = await self._ledger.find(approval, self._now())
                if found is None or found.state != "pending" or found.policy != self.policy.version:
                    return True
                left = deadline - clock()
                if left <= 0:
                    return False
                await heard(event, min(left, self._poll_seconds))

    async def answer(
        self,
        id: str,
        approve: bool,
        *,
        by: str,
        everybody: bool = False,
        level: Level = "once",
        reason: str | None = None,
        arguments: str | None = None,
    ) -> Approval:
        """Approve or deny, once and for all; `everybody` lets `by` answer for calls that are not theirs.

        Raises NotFound, Forbidden, InvalidRequest, Conflict if it was decided already, and a 410 if it has expired.
        """
        found = await self.find(id, by=by, everybody=everybody)
        if found.state == "pending" and self._is_stale(found):
            await self._ledger.void(id)
        elif found.state == "pending":
            answer = Answer(approve=approve, by=by, level=level, reason=reason, arguments=arguments)
            kept = await self._keep(found, answer)
            if kept is not None:
                return kept
        raise too_late(await self.find(id, by=by, everybody=everybody))

    async def find(self, id: str, *, by: str, everybody: bool = False) -> Approval:
        """The approval as it stands; NotFound if there is none or it is not for `by` to see."""
        found = await self._ledger.find(id, self._now(), caller=None if everybody else by)
        if found is None:
            raise NotFound(f"There is no approval {id[:100]!r}.", param="id", code="approval_not_found")
        return found

    async def pending(self, caller: str | None = None) -> Sequence[Approval]:
        """What waits for an answer, newest first; None means everybody's."""
        return await self.approvals(caller, "pending")

    async def approvals(self, caller: str | None = None, state: State | None = None) -> Sequence[Approval]:
        """Approvals in any state, newest first."""
        return await self._ledger.approvals(self._now(), caller=caller, state=state)

    async def page(
        self, wanted: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[Approval] | None:
        """So many approvals behind `after` or ahead of `before`; None if that is not among those that are wanted."""
        now = self._now()
        return await self._ledger.page(now, wanted=wanted, order=order, after=after, before=before, limit=limit)

    async def grants_page(
        self, wanted: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[Grant] | None:
        """So many grants behind `after` or ahead of `before`; None if that is not among those that are wanted."""
        return await self._ledger.grants_page(wanted=wanted, order=order, after=after, before=before, limit=limit)

    async def deny_all(
        self, *, by: str, caller: str | None = None, run: str | None = None, reason: str | None = None
    ) -> Sequence[str]:
        """Deny everything that waits, of one run or of all; the ids of what was denied."""
        denied = await self._ledger.deny_all(reason, by, self._now(), caller=caller, run=run)
        for id in denied:
            self._waiting.announce(id)
        return denied

    async def grants(self, caller: str | None = None) -> Sequence[Grant]:
        """What was granted beyond one call, newest first."""
        return await self._ledger.grants(caller)

    async def reset(self, caller: str | None = None) -> int:
        """Forget what was granted; how many grants there were."""
        return await self._ledger.reset(caller)

    async def _put(self, new: Approval) -> Verdict:
        settled = await self._ledger.claim(new, self.terms.max_pending_per_run, self._now())
        if settled is not None and settled.id == new.id and self._announce is not None:
            self._announce(settled)
        return verdict(settled)

    async def _keep(self, found: Approval, answer: Answer) -> Approval | None:
        """The answered approval, if this answer was the first."""
        if answer.approve and found.caller == answer.by and not self.policy.self_approval:
            raise Forbidden("Somebody else must approve what you asked for.", code="self_approval_forbidden")
        now = self._now()
        new = answered(found, answer, now, now + self.terms.expiry_seconds)
        grant = granted(found, answer, self.terms.workspace, now)
        if grant is not None and self.policy.is_never_auto(found.tool):
            raise InvalidRequest(f"Every call of {found.tool} is asked about: approve it once.", param="level")
        won = await self._ledger.answer(new, grant, now)
        self._waiting.announce(found.id)
        return new if won else None

    async def _is_granted(self, new: Approval) -> bool:
        since = self._now() - SESSION_SECONDS
        return await self._ledger.is_granted(
            new.caller, new.tool, new.source, new.spec, new.session, self.terms.workspace, since
        )

    def _is_stale(self, found: Approval) -> bool:
        """Whether what was asked about is no longer what would run."""
        current = self._definition(found.tool) if self._definition is not None else None
        return found.policy != self.policy.version or (current is not None and spec_digest(current) != found.spec)
