"""The requests under way and whose they are, so that those of a key that is gone can be ended.

An ended request is told why, in the words of its dialect: its task is cancelled, and whoever notices finds the reason in
the request's record. Knows callers and tasks; it must not know where keys come from.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from toolgate.conversation.errors import Forbidden, ToolgateError, Unauthenticated
from toolgate.server.auth import Caller
from toolgate.telemetry.traced import RequestRecord
from toolgate.upstreams.router import no_such_model


class Guest(Struct, frozen=True, gc=False):
    """A request that was let in: by which scope, and the task that answers it."""

    task: asyncio.Task[None]
    caller: Caller
    scope: str
    record: RequestRecord


class Present:
    """Everybody who is being answered, by the id of the request."""

    def __init__(self) -> None:
        self.guests: dict[str, Guest] = {}

    def enter(self, caller: Caller, scope: str, record: RequestRecord) -> None:
        """The running task answers this caller from now on."""
        task = asyncio.current_task()
        assert task is not None  # every request is answered in a task
        self.guests[record.request_id] = Guest(task, caller, scope, record)

    def review(self, now: Callable[[Caller], Caller | None], sparing: str = "") -> int:
        """End whatever its caller could not ask for now, save the request of this id; how many were ended."""
        ended = 0
        for id, guest in tuple(self.guests.items()):
            why = _why_not(guest, now(guest.caller))
            if why is not None and id != sparing:
                guest.record.dismissed = why
                guest.task.cancel()
                ended += 1
        return ended


def _why_not(guest: Guest, caller: Caller | None) -> ToolgateError | None:
    if caller is None:
        return Unauthenticated("The key of this request is no longer valid, so that the request was ended.")
    if guest.scope not in caller.scopes:
        return Forbidden(f"This key lacks the scope {guest.scope} by now.", code="missing_scope")
    model = guest.record.model
    return no_such_model(model) if model and not caller.may_use(model) else None
