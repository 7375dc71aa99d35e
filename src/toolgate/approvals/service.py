"""Hold tool calls for approval and take people's decisions about them.

The runner of a call asks `decide` before every call, awaits `wait` while the approval is pending, and asks `decide` again.
Decisions come in through `answer`. The service has no state of its own: everything is in the store, so that a decision
given to another process, or before a restart, counts just as much.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ParamSpec, TypeVar

from msgspec import Struct

from toolgate.approvals.decisions import (
    ApprovalDecision,
    closed_error,
    grant_from,
    new_approval,
    verdict_of,
    with_decision,
)
from toolgate.approvals.digest import AmbiguousArguments, canonical_arguments, spec_digest
from toolgate.approvals.policy import ApprovalPolicy
from toolgate.approvals.record import Approval, Level, Order, StandingApproval, State
from toolgate.approvals.store_protocol import ApprovalStoreProtocol
from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier, wait_for
from toolgate.conversation.errors import Forbidden, InvalidRequest, NotFound
from toolgate.tools.tool import CallApprovalOutcome, ProposedCall, ServerToolDefinition, Stance

# How soon `wait` looks for a decision that another process took; each look comes a little later than the one before.
POLL_SECONDS = 0.5

_POLL_GROWTH, _MAX_POLL = 1.1, 4  # by how much the pauses grow, and up to how many times the first one

# How long a grant for a session counts: a session has no end that the server gets to know.
SESSION_SECONDS = 24 * 3600.0

_MAX_ON_LOOP = 16 * 1024  # characters of arguments above which a thread parses them
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# The topic of notifications that approvals were asked for or answered.
CHANGED = "approvals"

OnNewApproval = Callable[[Approval], None]
FindDefinition = Callable[[str], ServerToolDefinition | None]

_SELF_APPROVAL = (
    "The key {} asked for this call and may not approve it: with more than one key, "
    "another key with the scopes tools and admin must. "
    "The setting tools.approvals.self_approval: true lets keys approve their own calls."
)


class ApprovalLimits(Struct, frozen=True, kw_only=True):
    """How long approvals stay open and how many one run may ask for.

    `hold_seconds` is how long a call should wait for a decision. Grants for a workspace need a `workspace`.
    """

    expiry_seconds: float = 3600.0
    hold_seconds: float = 120.0
    max_pending_per_run: int = 20
    workspace: str = ""


DEFAULT_OPTIONS = ApprovalLimits()


class ApprovalService:
    """Decides whether calls may run (`toolgate.tools.tool.CallApprovals`) and takes people's decisions."""

    def __init__(
        self,
        policy: ApprovalPolicy,
        store: ApprovalStoreProtocol,
        *,
        options: ApprovalLimits = DEFAULT_OPTIONS,
        on_new: OnNewApproval | None = None,
        definition: FindDefinition | None = None,
        now: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
        notifier: ChangeNotifier | None = None,
    ) -> None:
        """`on_new` receives every new approval; `definition` finds a tool, as it is defined now, by its name.

        `notifier` may reach other processes; a decision that it does not deliver is found by polling.
        """
        self.policy = policy
        self.options = options
        self._store = store
        self._on_new = on_new
        self._definition = definition
        self._now = now
        self._poll_seconds = poll_seconds
        self._notifier = notifier or LocalChangeNotifier()

    def renew(self, policy: ApprovalPolicy, options: ApprovalLimits) -> None:
        """Replace the policy; approvals that were asked for under another one go out of scope."""
        self.policy, self.options = policy, options

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        """Decide about a tool before a call of it is known."""
        return self.policy.stance(spec, caller, requested)

    async def decide(self, query: ProposedCall) -> CallApprovalOutcome:
        """Decide about one call; the `allow` that an approval gives consumes the approval."""
        policy, text = self.policy, query.invocation.text
        decision = await _off_loop(text, policy.decide, query)
        if decision.stance == "allow":
            return CallApprovalOutcome("allow")
        if decision.stance == "deny":
            return CallApprovalOutcome("deny", reason=f"{query.spec.name} may not be called: {decision.why}.")
        try:
            arguments = await _off_loop(text, canonical_arguments, text)
        except AmbiguousArguments as error:
            return CallApprovalOutcome("deny", reason=f"A person cannot be asked about these arguments: {error}.")
        now, options = self._now(), self.options
        expires = now + options.expiry_seconds
        new = new_approval(query, arguments, spec_digest(query.spec), policy.version, decision.why, now, expires)
        if not decision.fresh:
            # An approval of this very call is consumed before a grant is used: it must not stay valid for another time.
            if (used := await self._store.use(new.digest, now)) is not None:
                return verdict_of(used)
            since = now - SESSION_SECONDS
            if await self._store.is_granted(
                new.caller, new.tool, new.source, new.spec, new.session, options.workspace, since
            ):
                return CallApprovalOutcome("allow")
        claimed = await self._store.claim(new, options.max_pending_per_run, self._now())
        # Another id means that this call was asked about before: people are notified once.
        if claimed is not None and claimed.id == new.id:
            if self._on_new is not None:
                self._on_new(claimed)
            self._notifier.publish(CHANGED)
        return verdict_of(claimed)

    async def used(self, query: ProposedCall) -> CallApprovalOutcome | None:
        """Find the approval that this very call of this run has consumed already."""
        text = query.invocation.text
        try:
            arguments = await _off_loop(text, canonical_arguments, text)
        except AmbiguousArguments:
            return None
        now = self._now()
        same = new_approval(query, arguments, spec_digest(query.spec), self.policy.version, "", now, now)
        found = await self._store.used(same.caller, same.run, same.call, same.digest)
        return verdict_of(found) if found is not None else None

    async def wait(self, approval: str, seconds: float) -> bool:
        """Wait until the approval is decided, or can be decided no more because the policy has changed; False if late."""
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + seconds, self._poll_seconds
        async with self._notifier.subscribe(approval) as event:
            while True:
                event.clear()  # before the read: a decision that comes after it sets the event again
                found = await self._store.find(approval, self._now())
                if found is None or found.state != "pending" or found.policy != self.policy.version:
                    return True
                left = deadline - clock()
                if left <= 0:
                    return False
                await wait_for(event, min(left, pause))
                pause = min(pause * _POLL_GROWTH, self._poll_seconds * _MAX_POLL)

    def subscribe(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Open an event that is set whenever approvals are asked for or answered."""
        return self._notifier.subscribe(CHANGED)

    async def answer(
        self,
        id: str,
        approve: bool,
        *,
        by: str,
        any_caller: bool = False,
        level: Level = "once",
        reason: str | None = None,
        arguments: str | None = None,
    ) -> Approval:
        """Approve or deny, once and for all; with `any_caller`, `by` may decide about the calls of others.

        Raises NotFound, Forbidden, InvalidRequest, Conflict if it was decided already, and a 410 if it has expired.
        """
        found = await self.find(id, by=by, any_caller=any_caller)
        if found.state == "pending":
            # What the person saw must be what would run.
            current = self._definition(found.tool) if self._definition is not None else None
            changed = current is not None and spec_digest(current) != found.spec
            if changed or found.policy != self.policy.version:
                await self._store.void(id)  # the run asks again, about the tool as it is now
            else:
                decision = ApprovalDecision(approve=approve, by=by, level=level, reason=reason, arguments=arguments)
                if (answered := await self._apply(found, decision)) is not None:
                    return answered
        raise closed_error(await self.find(id, by=by, any_caller=any_caller))

    async def _apply(self, found: Approval, decision: ApprovalDecision) -> Approval | None:
        """Store the decision; None if another one was first."""
        # A denial is always allowed: it can do no harm.
        if decision.approve and found.caller == decision.by and not self.policy.self_approval:
            raise Forbidden(_SELF_APPROVAL.format(found.caller), code="self_approval_forbidden")
        now = self._now()
        expires = now + self.options.expiry_seconds
        answered = await _off_loop(decision.arguments or "", with_decision, found, decision, now, expires)
        grant = grant_from(found, decision, self.options.workspace, now)
        if grant is not None and self.policy.is_never_auto(found.tool):
            raise InvalidRequest(f"Every call of {found.tool} is asked about: approve it once.", param="level")
        is_first = await self._store.answer(answered, grant, now)
        self._notifier.publish(found.id)
        self._notifier.publish(CHANGED)
        return answered if is_first else None

    async def find(self, id: str, *, by: str, any_caller: bool = False) -> Approval:
        """Find an approval; NotFound if there is none or `by` may not see it."""
        found = await self._store.find(id, self._now(), caller=None if any_caller else by)
        if found is None:
            raise NotFound(f"There is no approval {id[:100]!r}.", param="id", code="approval_not_found")
        return found

    async def pending(self, caller: str | None = None) -> Sequence[Approval]:
        """List the approvals that wait for a decision, newest first; None means those of all callers."""
        return await self.approvals(caller, "pending")

    async def approvals(self, caller: str | None = None, state: State | None = None) -> Sequence[Approval]:
        """List approvals in any state, newest first."""
        return await self._store.approvals(self._now(), caller=caller, state=state)

    async def page(
        self, filters: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[Approval] | None:
        """List at most `limit` approvals after or before a cursor; None if the cursor does not pass the filters."""
        now = self._now()
        return await self._store.page(now, filters=filters, order=order, after=after, before=before, limit=limit)

    async def grants_page(
        self, filters: Mapping[str, str], order: Order, after: str | None, before: str | None, limit: int
    ) -> Sequence[StandingApproval] | None:
        """List at most `limit` grants after or before a cursor; None if the cursor does not pass the filters."""
        return await self._store.grants_page(filters=filters, order=order, after=after, before=before, limit=limit)

    async def deny_all(
        self, *, by: str, caller: str | None = None, run: str | None = None, reason: str | None = None
    ) -> Sequence[str]:
        """Deny all pending approvals, of one run or of all, and return their ids."""
        denied = await self._store.deny_all(reason, by, self._now(), caller=caller, run=run)
        for id in denied:
            self._notifier.publish(id)
        if denied:
            self._notifier.publish(CHANGED)
        return denied

    async def grants(self, caller: str | None = None) -> Sequence[StandingApproval]:
        """List grants, newest first."""
        return await self._store.grants(caller)

    async def reset(self, caller: str | None = None) -> int:
        """Delete all grants and return how many there were."""
        return await self._store.reset(caller)


async def _off_loop(
    text: str, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a function that parses `text`, in a thread if the text is long."""
    if len(text) <= _MAX_ON_LOOP:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
