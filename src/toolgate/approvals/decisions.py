"""Make approvals of calls, apply a person's decision to them, and turn them into verdicts. Values only."""

from msgspec import Struct
from msgspec.structs import replace

from toolgate.approvals.digest import AmbiguousArguments, call_digest, canonical_arguments
from toolgate.approvals.encode_for_people import MAX_TEXT
from toolgate.approvals.record import Approval, Level, StandingApproval
from toolgate.conversation.errors import ClientRequestError, Conflict, InvalidRequest
from toolgate.conversation.random_ids import random_suffix
from toolgate.tools.tool import CallApprovalOutcome, ProposedCall

_ROOM_FOR_NOTE = 40  # characters


class ApprovalDecision(Struct, frozen=True, kw_only=True):
    """A person's decision: yes or no, for how many calls a yes counts, and edited arguments."""

    approve: bool
    by: str
    level: Level = "once"
    reason: str | None = None
    arguments: str | None = None


def new_approval(
    query: ProposedCall, arguments: str, spec: str, policy: str, why: str, now: float, expires: float
) -> Approval:
    """Make a pending approval of a call; `arguments` are canonical, `spec` and `policy` are digests that it is bound to."""
    call, tool = query.invocation, query.spec
    return Approval(
        id="mcpr_" + random_suffix(),  # as OpenAI's `mcp_approval_request`, as which a Responses client gets it
        caller=call.caller,
        session=call.session,
        run=query.run,
        call=call.call_id,
        tool=tool.name,
        source=tool.source,
        origin=tool.origin,
        arguments=call.text,
        digest=call_digest(call.caller, tool.name, arguments, spec, policy),
        spec=spec,
        policy=policy,
        why=why,
        created=now,
        expires=expires,
        title=_cut(query.preparation.title),
        question=_cut(query.preparation.question),
        message=_cut(query.preparation.message),
        tainted=query.tainted,
    )


def _cut(text: str | None) -> str | None:
    """Cut a text that is longer than what a person is shown of it: a tool may make it much longer than its arguments."""
    if text is None or len(text) <= MAX_TEXT:
        return text
    kept = MAX_TEXT - _ROOM_FOR_NOTE
    return f"{text[:kept]} … ({len(text) - kept} more characters)"


def with_decision(approval: Approval, decision: ApprovalDecision, now: float, expires: float) -> Approval:
    """Apply a decision; an approved call may run until `expires`."""
    answered = replace(
        approval, answered_by=decision.by, answered=now, level=decision.level, reason=decision.reason, state="approved"
    )
    if not decision.approve:
        return replace(answered, state="denied", level="once")
    if decision.arguments is None:
        return replace(answered, expires=expires)  # counted anew: the client may need time to send its request again
    try:
        arguments = canonical_arguments(decision.arguments)
    except AmbiguousArguments as error:
        raise InvalidRequest(f"The arguments cannot be used: {error}.", param="arguments") from None
    # Whether they fit the tool's schema is checked when the call runs, as for any arguments.
    digest = call_digest(approval.caller, approval.tool, arguments, approval.spec, approval.policy)
    return replace(answered, expires=expires, edited=decision.arguments, edited_digest=digest)


def grant_from(approval: Approval, decision: ApprovalDecision, workspace: str, now: float) -> StandingApproval | None:
    """Make the grant that a decision for more than one call gives; None for all other decisions."""
    if not decision.approve or decision.level == "once":
        return None
    place = {"session": approval.session, "workspace": workspace, "always": ""}[decision.level]
    # A grant for an empty place never counts: the person would approve more than once and be asked all the same.
    if decision.level != "always" and not place:
        raise InvalidRequest(f"This call belongs to no {decision.level}; approve it once or always.", param="level")
    return StandingApproval(
        id="grant_" + random_suffix(),
        caller=approval.caller,
        tool=approval.tool,
        source=approval.source,
        spec=approval.spec,
        level=decision.level,
        place=place,
        granted_by=decision.by,
        created=now,
    )


def verdict_of(approval: Approval | None) -> CallApprovalOutcome:
    """Turn the approval that the store gave for a call into the call's verdict; None means that it gave none."""
    if approval is None:
        return CallApprovalOutcome(
            "deny", reason="This run has asked for too many approvals that were not given; it may ask for no more."
        )
    match approval.state:
        case "consumed":
            return CallApprovalOutcome("allow", approval.id, arguments=approval.edited)
        case "pending":
            return CallApprovalOutcome("pending", approval.id)
        case "expired":
            return CallApprovalOutcome(
                "deny", approval.id, "This call was not approved in time; the approval has expired."
            )
        case _:
            because = f": {approval.reason}" if approval.reason else "."
            return CallApprovalOutcome("deny", approval.id, f"A person denied this call{because}")


def closed_error(approval: Approval) -> ClientRequestError:
    """Make the error for a decision about an approval that is no longer pending."""
    details = {
        "state": approval.state,
        "answered_by": approval.answered_by,
        "level": approval.level,
        "reason": approval.reason,
    }
    match approval.state:
        case "expired":
            return ClientRequestError(
                "This approval has expired.", status=410, code="approval_expired", details=details
            )
        case "out_of_scope":
            why = (
                "The tool or the approval policy has changed since this was asked (a second key changes the policy, too), "
                "or approvals were reset. Send the request again to be asked again."
            )
        case "consumed":
            why = f"It was approved by {approval.answered_by} already and the call has been made."
        case _:
            why = f"It was {approval.state} by {approval.answered_by} already."
    code = "out_of_scope" if approval.state == "out_of_scope" else f"already_{approval.state}"
    return Conflict(why, code=code, details=details)
