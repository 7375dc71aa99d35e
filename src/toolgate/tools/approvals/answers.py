"""What becomes of a question: the record it starts as, the record an answer makes of it, and what each side is told."""

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import ClientFault, Conflict, InvalidRequest
from toolgate.conversation.ids import mint
from toolgate.tools.approvals.binding import Ambiguous, call_digest, canonical
from toolgate.tools.approvals.record import Approval, Grant, Level
from toolgate.tools.tool import Asked, Verdict


class Answer(Struct, frozen=True, kw_only=True):
    """What a person said: yes or no, how far a yes goes, and with which arguments instead."""

    approve: bool
    by: str
    level: Level = "once"
    reason: str | None = None
    arguments: str | None = None


def question(asked: Asked, arguments: str, spec: str, policy: str, why: str, now: float, expires: float) -> Approval:
    """The call as a question to a person; `arguments` are canonical, `spec` and `policy` what it is bound to."""
    call, tool = asked.invocation, asked.spec
    return Approval(
        id="mcpr_" + mint(),
        caller=call.caller,
        session=call.session,
        run=asked.run,
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
        title=asked.preparation.title,
        question=asked.preparation.question,
        message=asked.preparation.message,
        tainted=asked.tainted,
    )


def answered(found: Approval, answer: Answer, now: float, expires: float) -> Approval:
    """The question with its answer; an approval may be used until `expires`."""
    if not answer.approve:
        return replace(found, state="denied", answered_by=answer.by, answered=now, level="once", reason=answer.reason)
    return replace(
        found,
        state="approved",
        answered_by=answer.by,
        answered=now,
        level=answer.level,
        reason=answer.reason,
        edited=answer.arguments,
        edited_digest=_edited(found, answer.arguments),
        expires=expires,
    )


def _edited(found: Approval, arguments: str | None) -> str | None:
    """The digest of edited arguments; the tool's schema is checked by whoever runs the call."""
    if arguments is None:
        return None
    try:
        meaning = canonical(arguments)
    except Ambiguous as error:
        raise InvalidRequest(f"The arguments cannot be used: {error}.", param="arguments") from None
    return call_digest(found.caller, found.tool, meaning, found.spec, found.policy)


def granted(found: Approval, answer: Answer, workspace: str, now: float) -> Grant | None:
    """The grant that an answer gives beyond this one call."""
    if not answer.approve or answer.level == "once":
        return None
    place = {"session": found.session, "workspace": workspace, "always": ""}[answer.level]
    if answer.level != "always" and not place:
        raise InvalidRequest(f"This call belongs to no {answer.level}; approve it once or always.", param="level")
    return Grant(
        id="grant_" + mint(),
        caller=found.caller,
        tool=found.tool,
        source=found.source,
        spec=found.spec,
        level=answer.level,
        place=place,
        granted_by=answer.by,
        created=now,
    )


def verdict(settled: Approval | None) -> Verdict:
    """What the call is told, from what the ledger found for it."""
    if settled is None:
        return Verdict("deny", reason="This run has put too many questions that nobody approved; it may put no more.")
    match settled.state:
        case "consumed":
            return Verdict("allow", settled.id, arguments=settled.edited)
        case "pending":
            return Verdict("pending", settled.id)
        case "expired":
            return Verdict("deny", settled.id, "Nobody approved this call in time; the question has expired.")
        case _:
            because = f": {settled.reason}" if settled.reason else "."
            return Verdict("deny", settled.id, f"A person denied this call{because}")


def too_late(found: Approval) -> ClientFault:
    """What somebody is told who answers what cannot be answered any more."""
    said = {"state": found.state, "answered_by": found.answered_by, "level": found.level, "reason": found.reason}
    match found.state:
        case "expired":
            return ClientFault("This approval has expired.", status=410, code="approval_expired", details=said)
        case "out_of_scope":
            why = "The tool or the policy has changed since this was asked, or what was granted has been reset."
        case "consumed":
            why = f"It was approved by {found.answered_by} already and the call has been made."
        case _:
            why = f"It was {found.state} by {found.answered_by} already."
    code = "out_of_scope" if found.state == "out_of_scope" else f"already_{found.state}"
    return Conflict(why, code=code, details=said)
