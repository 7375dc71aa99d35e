"""Serve approvals at /v1/approvals: list the calls that wait for a person, and approve or deny them.

A caller sees and answers the approvals of its own calls, with the scope `admin` those of all callers; for others an
approval does not exist. The policy cannot be changed here, only in the configuration.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.api.paging import list_page, read_limit, read_number, read_query, unknown_cursor
from toolgate.approvals.encode_for_people import approval_json, grant_json
from toolgate.approvals.record import Approval, Level, Order, State
from toolgate.approvals.service import ApprovalService
from toolgate.change_notifications.notifier import wait_for
from toolgate.conversation.errors import ClientRequestError, InvalidRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.tools.argument_check import MAX_ARGUMENTS
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

LONGEST_REASON = 2000
# Characters of arguments on one page of a list; what does not fit is on the next.
LARGEST_PAGE = 2 * 1024 * 1024

# Seconds for which a request may wait for a list to change: less than the timeouts of common proxies.
LONGEST_WAIT = 30

_LOOK_SECONDS = 1.0  # between two looks for what no message has announced: a question that expired, an answer elsewhere
_MAX_ON_LOOP = 16 * 1024  # characters of arguments; longer ones are encoded in a thread


class ApprovalEndpoints:
    """The endpoints over one approval service."""

    def __init__(self, approvals: ApprovalService, is_draining: Callable[[], bool] = lambda: False) -> None:
        self._approvals = approvals
        self._is_draining = is_draining

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/approvals", self.list, errors, scope="tools"),
            HttpRoute("GET", "/v1/approvals/grants", self.grants, errors, scope="tools"),
            HttpRoute("POST", "/v1/approvals/deny_all", self.deny_all, errors, scope="tools"),
            HttpRoute("POST", "/v1/approvals/reset", self.reset, errors, scope="tools"),
            HttpRoute("GET", "/v1/approvals/{}", self.show, errors, scope="tools"),
            HttpRoute("POST", "/v1/approvals/{}", self.answer, errors, scope="tools"),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List approvals, newest first; `?state=pending` lists those that wait, `order=fair` lets callers take turns.

        With `wait` the answer comes when the list is another one than that of `version`, or after so many seconds.
        """
        query = read_query(call.exchange.query)
        filters = _filters(call, query, "tool", "run", "state")
        if filters.get("state") not in (None, *get_args(State)):
            raise InvalidRequest(f"state must be one of {', '.join(get_args(State))}.", param="state")
        page, seconds = _read_page(query), read_number(query, "wait", 0)
        if seconds > LONGEST_WAIT:
            raise InvalidRequest(f"wait may be at most {LONGEST_WAIT} seconds.", param="wait", code="invalid_value")
        if seconds:
            call.exchange.cancel_when_client_leaves()
        found = await self._changed(call, filters, page, query.get("version", ""), seconds)
        if found is None:
            raise unknown_cursor(page.after or page.before or "")
        # Large arguments make a page shorter, but the approval nearest to the cursor always fits: else none could follow.
        size, limit = 0, page.limit
        for count, one in enumerate(found if page.before is None else reversed(found)):
            size += _size(one)
            if size > LARGEST_PAGE:
                limit = min(max(count, 1), page.limit)
                break
        page = replace(page, limit=limit)
        # One more than the limit: `has_more` is true if there is one.
        shown = found[: page.limit + 1] if page.before is None else found[-page.limit - 1 :]
        await _respond(call, [await _encoded(one) for one in shown], page, version=_version(found))

    async def _changed(
        self, call: AdmittedHttpRequest, filters: Mapping[str, str], page: "_Page", version: str, seconds: float
    ) -> Sequence[Approval] | None:
        """Load the page; wait for so many seconds, or until the server ends, while it is still that of the version."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        async with self._approvals.subscribe() as changed:
            while True:
                changed.clear()
                found = await self._approvals.page(filters, page.order, page.after, page.before, page.limit + 1)
                left = deadline - clock()
                if left <= 0 or found is None or _version(found) != version or self._is_draining():
                    return found
                try:
                    await wait_for(changed, min(left, _LOOK_SECONDS))
                except asyncio.CancelledError:
                    if call.exchange.client_left or call.record.cancelled_with is not None:
                        raise
                    return found  # the server stops: a list that has not changed is a good answer

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one approval."""
        found = await self._approvals.find(call.arguments[0], by=call.caller.name, any_caller=_is_admin(call))
        await call.exchange.respond(200, encode(await _encoded(found)))

    async def answer(self, call: AdmittedHttpRequest) -> None:
        """Approve or deny, once; a second answer gets the first one back."""
        id, by, any_caller = call.arguments[0], call.caller.name, _is_admin(call)
        decision = _decode_decision(await call.exchange.json())
        try:
            answered = await self._approvals.answer(id, by=by, any_caller=any_caller, **decision)
        except ClientRequestError as error:
            if error.status not in (409, 410):
                raise
            # Answered or expired already: with the error the client gets what was decided, and by whom.
            call.record.note_error(error)
            body = msgspec.json.decode(OPENAI_CHAT.server.encode_error(error))
            found = await self._approvals.find(id, by=by, any_caller=any_caller)
            await call.exchange.respond(error.status, encode({**body, "approval": await _encoded(found)}))
            return
        await call.exchange.respond(200, encode(await _encoded(answered)))

    async def deny_all(self, call: AdmittedHttpRequest) -> None:
        """Deny everything that waits, or all of one run."""
        fields = Fields(await call.exchange.optional_json())
        run, reason = fields.text("run"), _reason(fields)
        fields.refuse_unknown()
        denied = await self._approvals.deny_all(by=call.caller.name, caller=_owner(call), run=run, reason=reason)
        await call.exchange.respond(200, encode({"object": "approval.denials", "denied": denied}))

    async def grants(self, call: AdmittedHttpRequest) -> None:
        """List the grants for more than one call, newest first."""
        query = read_query(call.exchange.query)
        filters, page = _filters(call, query, "tool"), _read_page(query)
        found = await self._approvals.grants_page(filters, page.order, page.after, page.before, page.limit + 1)
        if found is None:
            raise unknown_cursor(page.after or page.before or "")
        await _respond(call, [grant_json(one) for one in found], page)

    async def reset(self, call: AdmittedHttpRequest) -> None:
        """Delete grants, so that calls need an approval again."""
        Fields(await call.exchange.optional_json()).refuse_unknown()
        forgotten = await self._approvals.reset(_owner(call))
        await call.exchange.respond(200, encode({"object": "approval.reset", "forgotten": forgotten}))


async def _encoded(approval: Approval) -> dict[str, Any]:
    """Return the approval as JSON; long arguments are prepared in a thread, one approval at a time."""
    return approval_json(approval) if _size(approval) <= _MAX_ON_LOOP else await run_in_thread(approval_json, approval)


def _size(approval: Approval) -> int:
    return len(approval.arguments) + len(approval.edited or "")


def _is_admin(call: AdmittedHttpRequest) -> bool:
    return "admin" in call.caller.scopes


def _owner(call: AdmittedHttpRequest) -> str | None:
    """Return whose approvals a request concerns; None for those of all callers."""
    return None if _is_admin(call) else call.caller.name


def _filters(call: AdmittedHttpRequest, query: dict[str, str], *names: str) -> dict[str, str]:
    """Return the filters of a list: the caller's own approvals, or for an admin those of the `caller` in the query."""
    owner = query.get("caller") if _is_admin(call) else call.caller.name
    filters = {"caller": owner, **{name: query.get(name) for name in names}}
    return {name: value for name, value in filters.items() if value}


class _Page(Struct, frozen=True):
    """Which part of a list is requested: so many items in this order, `after` or `before` the item of that id."""

    order: Order
    after: str | None
    before: str | None
    limit: int


def _read_page(query: dict[str, str]) -> _Page:
    order = query.get("order", "desc")
    if order not in get_args(Order):
        raise InvalidRequest(f"order must be one of {', '.join(get_args(Order))}.", param="order")
    after, before = query.get("after") or None, query.get("before") or None
    if after is not None and before is not None:
        raise InvalidRequest("after and before cannot be used together.", param="before")
    return _Page(cast(Order, order), after, before, read_limit(query))


def _version(found: Sequence[Approval]) -> str:
    """Return a text that changes when approvals are added to a page, leave it or change their state."""
    return sha256("\n".join(f"{one.id} {one.state}" for one in found).encode()).hexdigest()[:16]


async def _respond(call: AdmittedHttpRequest, found: "list[dict[str, Any]]", page: _Page, **more: str) -> None:
    """Send a page; before a cursor, the item beyond the limit comes first."""
    body = await run_in_thread(
        lambda: encode({**list_page(found, page.limit, backwards=page.before is not None), **more})
    )
    await call.exchange.respond(200, body)


def _decode_decision(body: Any) -> dict[str, Any]:
    """Decode an answer to the arguments of `ApprovalService.answer`."""
    fields = Fields(body)
    decision = fields.one_of("decision", "approve", "deny")
    if decision is None:
        raise InvalidRequest("decision must be approve or deny.", param="decision", code="missing_required_parameter")
    level, arguments = fields.one_of("level", *get_args(Level)), fields.mapping("arguments")
    reason = _reason(fields)
    fields.refuse_unknown()
    if decision == "deny" and (arguments is not None or level not in (None, "once")):
        raise InvalidRequest("A denial takes neither arguments nor a level.", param="decision")
    edited = None if arguments is None else encode(arguments).decode()
    if edited is not None and len(edited) > MAX_ARGUMENTS:
        raise InvalidRequest(f"arguments may have at most {MAX_ARGUMENTS} characters.", param="arguments")
    return {"approve": decision == "approve", "level": level or "once", "arguments": edited, "reason": reason}


def _reason(fields: Fields) -> str | None:
    reason = fields.text("reason")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise InvalidRequest(f"reason may have at most {LONGEST_REASON} characters.", param="reason")
    return reason
