"""The inbox of approvals at /v1/approvals: what waits for a person, and what they say.

A caller sees and answers what it asked for itself; the scope `admin` is for everybody's. To anybody else an approval does
not exist. There is no way to change the policy here: it is written in the configuration and nowhere else.
"""

from typing import Any, cast, get_args

import msgspec

from toolgate.conversation.errors import ClientFault, InvalidRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.server.app import Call, Endpoint
from toolgate.server.responses.paging import listed, read_limit, read_query, unknown_cursor
from toolgate.tools.approvals.desk import Desk
from toolgate.tools.approvals.record import Level, Order, State
from toolgate.tools.approvals.shown import shown, shown_grant
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

LONGEST_REASON = 2000


class ApprovalInbox:
    """The endpoints over one desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/approvals", self.list, words, scope="tools"),
            Endpoint("GET", "/v1/approvals/grants", self.grants, words, scope="tools"),
            Endpoint("POST", "/v1/approvals/deny_all", self.deny_all, words, scope="tools"),
            Endpoint("POST", "/v1/approvals/reset", self.reset, words, scope="tools"),
            Endpoint("GET", "/v1/approvals/{}", self.show, words, scope="tools"),
            Endpoint("POST", "/v1/approvals/{}", self.answer, words, scope="tools"),
        ]

    async def list(self, call: Call) -> None:
        """List approvals, newest first; `?state=pending` lists those that wait, `order=fair` lets callers take turns."""
        said = read_query(call.exchange.query)
        wanted = {**_wanted(call, said, "tool", "run"), **_state(said)}
        order, after, before, limit = _place(said)
        found = await self._desk.page(wanted, order, after, before, limit + 1)
        await _respond(call, None if found is None else [shown(one) for one in found], after, before, limit)

    async def show(self, call: Call) -> None:
        """Tell about one approval."""
        found = await self._desk.find(call.arguments[0], by=call.caller.name, everybody=_is_admin(call))
        await call.exchange.respond(200, encode(shown(found)))

    async def answer(self, call: Call) -> None:
        """Approve or deny, once; a second answer is told the first."""
        id, by, everybody = call.arguments[0], call.caller.name, _is_admin(call)
        said = _answer(await call.exchange.json())
        try:
            answered = await self._desk.answer(id, by=by, everybody=everybody, **said)
        except ClientFault as error:
            if error.status not in (409, 410):
                raise
            call.record.note_error(error)
            body = msgspec.json.decode(OPENAI_CHAT.server.encode_error(error))
            found = await self._desk.find(id, by=by, everybody=everybody)
            await call.exchange.respond(error.status, encode({**body, "approval": shown(found)}))
            return
        await call.exchange.respond(200, encode(shown(answered)))

    async def deny_all(self, call: Call) -> None:
        """Deny everything that waits, or all of one run."""
        fields = Fields(await call.exchange.optional_json())
        run, reason = fields.text("run"), _reason(fields)
        fields.no_more()
        denied = await self._desk.deny_all(by=call.caller.name, caller=_whose(call), run=run, reason=reason)
        await call.exchange.respond(200, encode({"object": "approval.denials", "denied": denied}))

    async def grants(self, call: Call) -> None:
        """List what was granted beyond one call, newest first."""
        said = read_query(call.exchange.query)
        order, after, before, limit = _place(said)
        found = await self._desk.grants_page(_wanted(call, said, "tool"), order, after, before, limit + 1)
        await _respond(call, None if found is None else [shown_grant(one) for one in found], after, before, limit)

    async def reset(self, call: Call) -> None:
        """Forget what was granted, so that it is asked about again."""
        Fields(await call.exchange.optional_json()).no_more()
        forgotten = await self._desk.reset(_whose(call))
        await call.exchange.respond(200, encode({"object": "approval.reset", "forgotten": forgotten}))


def _is_admin(call: Call) -> bool:
    return "admin" in call.caller.scopes


def _whose(call: Call) -> str | None:
    return None if _is_admin(call) else call.caller.name


def _wanted(call: Call, said: dict[str, str], *names: str) -> dict[str, str]:
    """What a list is narrowed to: the caller's own, for an admin those of any `caller` it names."""
    whose = said.get("caller") if _is_admin(call) else call.caller.name
    asked = {"caller": whose, **{name: said.get(name) for name in names}}
    return {name: value for name, value in asked.items() if value}


def _place(said: dict[str, str]) -> tuple[Order, str | None, str | None, int]:
    """Which part of a list the query asks for: the order, `after`, `before` and how many."""
    order = said.get("order", "desc")
    if order not in get_args(Order):
        raise InvalidRequest(f"order must be one of {', '.join(get_args(Order))}.", param="order")
    after, before = said.get("after") or None, said.get("before") or None
    if after is not None and before is not None:
        raise InvalidRequest("after and before exclude each other.", param="before")
    return cast(Order, order), after, before, read_limit(said)


async def _respond(
    call: Call, found: "list[dict[str, Any]] | None", after: str | None, before: str | None, limit: int
) -> None:
    """Send a page; ahead of a cursor, the one too many stands first."""
    if found is None:
        raise unknown_cursor(after or before or "")
    page = listed(found, limit)
    if before is not None and page["has_more"]:
        page = {**listed(found[1:], limit), "has_more": True}
    await call.exchange.respond(200, encode(page))


def _state(said: dict[str, str]) -> dict[str, str]:
    """The state that the query names, if it names one."""
    state = said.get("state")
    if not state:
        return {}
    if state not in get_args(State):
        raise InvalidRequest(f"state must be one of {', '.join(get_args(State))}.", param="state")
    return {"state": state}


def _answer(body: Any) -> dict[str, Any]:
    fields = Fields(body)
    decision = fields.one_of("decision", "approve", "deny")
    if decision is None:
        raise InvalidRequest("decision must be approve or deny.", param="decision", code="missing_required_parameter")
    level, arguments = fields.one_of("level", *get_args(Level)), fields.mapping("arguments")
    reason = _reason(fields)
    fields.no_more()
    if decision == "deny" and (arguments is not None or level not in (None, "once")):
        raise InvalidRequest("A denial takes neither arguments nor a level.", param="decision")
    edited = None if arguments is None else encode(arguments).decode()
    return {"approve": decision == "approve", "level": level or "once", "arguments": edited, "reason": reason}


def _reason(fields: Fields) -> str | None:
    reason = fields.text("reason")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise InvalidRequest(f"reason may have at most {LONGEST_REASON} characters.", param="reason")
    return reason
