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
    """Watches the approvals for all windows of this process that want to see them.

    Each window has a task of its own, which waits while its editor does not read: others are shown approvals meanwhile.
    """

    def __init__(
        self, approvals: ApprovalService, notifier: ChangeNotifier, caller: Callable[[str], Caller | None]
    ) -> None:
        """`caller` finds a caller with its present rights by the name of its key."""
        self._approvals = approvals
        self._notifier = notifier
        self._caller = caller
        self._enabled = True
        self._shown: dict[EditorSession, set[str]] = {}
        self._watching: dict[EditorSession, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def configure(self, enabled: bool) -> None:
        """Show approvals in the windows that have joined, and take their answers, or neither from now on."""
        self._enabled = enabled
        for _, changed in self._watching.values():
            changed.set()

    def window_changed(self, session: EditorSession) -> None:
        """Show approvals in a window that wants to see them, and no longer in one that does not."""
        if not session.state.lends.approvals:
            self._shown.pop(session, None)
        elif session not in self._shown:
            self._shown[session] = set()
            if session not in self._watching:
                changed = asyncio.Event()
                self._watching[session] = asyncio.get_running_loop().create_task(self._watch(session, changed)), changed
            self._watching[session][1].set()

    def window_left(self, session: EditorSession) -> None:
        """Forget a window."""
        self._shown.pop(session, None)
        if watching := self._watching.pop(session, None):
            watching[0].cancel()

    async def answer(self, session: EditorSession, frame: BridgeApprovalAnswerFrame) -> None:
        """Store the answer of a person, and reply to the editor."""
        try:
            person = self._person(session)
            if person is None or session not in self._shown:
                raise InvalidRequest("This editor may not answer approvals.", code="forbidden")
            approved = frame.decision == "approve"
            if not approved and (frame.arguments is not None or frame.level not in (None, "once")):
                raise InvalidRequest("A denial takes neither arguments nor a level.", param="decision")
            edited = None if frame.arguments is None else (await run_in_thread(encode, frame.arguments)).decode()
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
            await session.write_when_read(BridgeErrorFrame(frame.id, error.code, error.message))
        else:
            self._shown.get(session, set()).discard(frame.id)
            await session.write_when_read(BridgeApprovalAnswerAckFrame(frame.id, answered.state))

    async def aclose(self) -> None:
        """Stop watching."""
        tasks = [task for task, _ in self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _person(self, session: EditorSession) -> _Person | None:
        if not self._enabled:
            return None
        if not session.owner:  # joined by the token of this machine
            return _Person(BY, is_admin=True)
        # Looked up each time: the key may have been revoked, or lost a scope, since the editor joined.
        caller = self._caller(session.owner)
        if caller is None or "tools" not in caller.scopes:
            return None
        return _Person(caller.name, "admin" in caller.scopes)

    async def _watch(self, session: EditorSession, changed: asyncio.Event) -> None:
        """Compare what waits with what the window shows, at every change, while it wants to see approvals."""
        async with self._notifier.subscribe(CHANGED) as notified:
            while True:
                notified.clear()
                changed.clear()
                with suppress(ToolgateError):  # the storage is away: it is read at the next look
                    await self._show(session)
                # A window that wants to see nothing is not compared with anything until it does.
                events = (notified, changed) if session in self._shown else (changed,)
                waiting = [asyncio.ensure_future(one.wait()) for one in events]
                try:
                    seconds = _POLL_SECONDS if session in self._shown else None
                    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in waiting:
                        one.cancel()

    async def _show(self, session: EditorSession) -> None:
        person = self._person(session)
        filters = {"state": "pending"}
        if person is not None and not person.is_admin:
            filters["caller"] = person.name
        # In turns: many questions of one caller do not hide those of another.
        page = None if person is None else await self._approvals.page(filters, "fair", None, None, _MOST_SHOWN)
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
            await session.write_when_read(BridgeApprovalClosedFrame(id, state))
        for id, approval in pending.items():
            if id not in shown:
                encoded = Raw(await run_in_thread(_encoded, approval))
                await session.write_when_read(BridgeApprovalFrame(id, encoded))
                if self._shown.get(session) is not shown:  # the person has switched it off meanwhile
                    return
                shown.add(id)


def _encoded(approval: Approval) -> bytes:
    shown: dict[str, Any] = approval_json(approval)
    return encode(shown)
