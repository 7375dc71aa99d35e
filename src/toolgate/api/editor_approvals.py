"""Show calls that wait for approval in editors, and take the answers of the people there.

An editor that joined by the token of this machine belongs to the person who runs the server, and sees all; one that joined
by a key sees what that key could see and answer at /v1/approvals. The store decides who was first.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Raw, Struct

from toolgate.approvals.encode_for_people import approval_json
from toolgate.approvals.record import Approval
from toolgate.approvals.service import CHANGED, ApprovalService
from toolgate.auth.authenticator import Caller
from toolgate.bridge.frames import (
    BridgeApprovalAnswerAckFrame,
    BridgeApprovalAnswerFrame,
    BridgeApprovalClosedFrame,
    BridgeApprovalFrame,
    BridgeErrorFrame,
)
from toolgate.bridge.session import EditorSession
from toolgate.change_notifications.notifier import ChangeNotifier
from toolgate.conversation.errors import InvalidRequest, ToolgateError
from toolgate.engine.json_thread import run_in_thread
from toolgate.tools.argument_check import MAX_ARGUMENTS
from toolgate.wire.jsontext import encode

# Who has answered, if the editor joined by the token of this machine.
BY = "vscode"

_POLL_SECONDS = 5.0  # for what no notification reports: approvals that expire
_MOST_SHOWN = 50


class _Person(Struct, frozen=True):
    """Under which name a session answers, and whether it may answer for all callers."""

    name: str
    is_admin: bool


class EditorApprovals:
    """Watches the approvals for all windows of this process that want to see them."""

    def __init__(
        self, approvals: ApprovalService, notifier: ChangeNotifier, caller: Callable[[str], Caller | None]
    ) -> None:
        """`caller` finds a caller with its present rights by the name of its key."""
        self._approvals = approvals
        self._notifier = notifier
        self._caller = caller
        self._shown: dict[EditorSession, set[str]] = {}
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def window_changed(self, session: EditorSession) -> None:
        """Show approvals in a window that wants to see them, and no longer in one that does not."""
        if session.state.lends.approvals and session not in self._shown:
            self._shown[session] = set()
            self._changed.set()
            if self._watching is None:
                self._watching = asyncio.get_running_loop().create_task(self._watch())
        elif not session.state.lends.approvals:
            self.window_left(session)

    def window_left(self, session: EditorSession) -> None:
        """Forget a window."""
        self._shown.pop(session, None)

    async def answer(self, session: EditorSession, frame: BridgeApprovalAnswerFrame) -> None:
        """Store the answer of a person, and reply to the editor."""
        try:
            person = self._person(session)
            if person is None or session not in self._shown:
                raise InvalidRequest("This editor may not answer approvals.", code="forbidden")
            approved = frame.decision == "approve"
            if not approved and (frame.arguments is not None or frame.level not in (None, "once")):
                raise InvalidRequest("A denial takes neither arguments nor a level.", param="decision")
            edited = None if frame.arguments is None else encode(frame.arguments).decode()
            if edited is not None and len(edited) > MAX_ARGUMENTS:
                raise InvalidRequest(f"arguments may have at most {MAX_ARGUMENTS} characters.", param="arguments")
            answered = await self._approvals.answer(
                frame.id,
                approved,
                by=person.name,
                any_caller=person.is_admin,
                level=frame.level or "once",
                reason=frame.reason,
                arguments=edited,
            )
        except ToolgateError as error:
            session.write(BridgeErrorFrame(frame.id, error.code, error.message))
        else:
            self._shown.get(session, set()).discard(frame.id)
            session.write(BridgeApprovalAnswerAckFrame(frame.id, answered.state))

    async def aclose(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    def _person(self, session: EditorSession) -> _Person | None:
        if not session.owner:  # joined by the token of this machine
            return _Person(BY, is_admin=True)
        # Looked up each time: the key may have been revoked, or lost a scope, since the editor joined.
        caller = self._caller(session.owner)
        if caller is None or "tools" not in caller.scopes:
            return None
        return _Person(caller.name, "admin" in caller.scopes)

    async def _watch(self) -> None:
        """Compare what waits with what is shown, at every change, while windows want to see it."""
        async with self._notifier.subscribe(CHANGED) as notified:
            while True:
                notified.clear()
                self._changed.clear()
                with suppress(ToolgateError):  # the storage is away: it is read at the next look
                    for session in tuple(self._shown):
                        await self._show(session)
                waiting = [asyncio.ensure_future(one.wait()) for one in (notified, self._changed)]
                seconds = _POLL_SECONDS if self._shown else None  # without windows, nothing is read until one comes
                await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                for one in waiting:
                    one.cancel()

    async def _show(self, session: EditorSession) -> None:
        person = self._person(session)
        filters = {"state": "pending"}
        if person is not None and not person.is_admin:
            filters["caller"] = person.name
        page = None if person is None else await self._approvals.page(filters, "asc", None, None, _MOST_SHOWN)
        pending = {one.id: one for one in page or ()}
        shown = self._shown.get(session)
        if shown is None:  # it has left while the page was read
            return
        for id in shown - pending.keys():
            shown.discard(id)
            try:
                state: str = (await self._approvals.find(id, by=BY, any_caller=True)).state
            except ToolgateError:  # it is not stored any more
                state = "expired"
            session.write(BridgeApprovalClosedFrame(id, state))
        for id, approval in pending.items():
            if id not in shown:
                shown.add(id)
                session.write(BridgeApprovalFrame(id, Raw(await run_in_thread(_encoded, approval))))


def _encoded(approval: Approval) -> bytes:
    shown: dict[str, Any] = approval_json(approval)
    return encode(shown)
