"""The requests under way and whose they are, so that those of a key that is gone can be ended.

An ended request is told why, in the words of its dialect: its task is cancelled, and whoever notices finds the reason in
the request's record. Knows callers and tasks; it must not know where keys come from.
"""

from collections.abc import Callable
from typing import TypeAlias

from toolgate.conversation.errors import Forbidden, ToolgateError, Unauthenticated
from toolgate.server.callers.auth import Caller
from toolgate.server.exchange import Exchange
from toolgate.telemetry.traced import RequestRecord
from toolgate.upstreams.router import no_such_model

Guest: TypeAlias = tuple[Exchange, Caller, str, RequestRecord]
"""A request that was let in by a scope; a bare tuple, since every request makes one."""


class Present:
    """Everybody who is being answered, by the id of the request; who lets them in and out writes here."""

    def __init__(self) -> None:
        self.guests: dict[str, Guest] = {}

    def review(self, now: Callable[[Caller], Caller | None], sparing: str = "") -> int:
        """End whatever its caller could not ask for now, save the request of this id; how many were ended."""
        ended = 0
        for id, (exchange, caller, scope, record) in tuple(self.guests.items()):
            why = _why_not(now(caller), scope, record.model)
            if why is not None and id != sparing:
                record.dismissed = why
                exchange.cancel()
                ended += 1
        return ended


def _why_not(caller: Caller | None, scope: str, model: str) -> ToolgateError | None:
    if caller is None:
        return Unauthenticated("The key of this request is no longer valid, so that the request was ended.")
    if scope not in caller.scopes:
        return Forbidden(f"This key lacks the scope {scope} by now.", code="missing_scope")
    return no_such_model(model) if model and not caller.may_use(model) else None
