"""Keep the running requests with their callers, so that those of an invalid key can be cancelled.

The client of a cancelled request gets the reason: it stands in the request's record when the task is cancelled.
Knows callers and tasks; it must not know where keys come from.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from toolgate.auth.authenticator import Caller
from toolgate.conversation.errors import (
    ClientRequestError,
    Forbidden,
    GatewayOverloaded,
    ToolgateError,
    Unauthenticated,
)
from toolgate.telemetry.request_log import RUN_CANCELLED, RequestRecord
from toolgate.upstreams.router import no_such_model


class Cancellable(Protocol):
    """A request that can be cancelled from outside."""

    def cancel(self) -> None:
        """Cancel the task that runs the request."""


# A request with its caller, the scope that it needs and its record; a bare tuple, since every request makes one.
ActiveRequest: TypeAlias = tuple[Cancellable, Caller, str, RequestRecord]


class ActiveRequests:
    """The running requests by id; the application adds and removes them in `by_id` itself, which costs no call."""

    def __init__(self) -> None:
        self.by_id: dict[str, ActiveRequest] = {}
        self._spared: set[str] = set()

    @contextmanager
    def sparing(self, id: str) -> Iterator[None]:
        """Let the request with this id go on meanwhile, whatever becomes of its key."""
        self._spared.add(id)
        try:
            yield
        finally:
            self._spared.discard(id)

    def check_share(self, caller: Caller, connections: int) -> None:
        """Raise GatewayOverloaded if the caller has its share of the connections; one more caller is counted in."""
        # Counted here and not with every request: this is called only when connections run short.
        by_caller = Counter(one.name for _, one, _, _ in self.by_id.values())
        callers = len(by_caller.keys() | {caller.name})
        if by_caller[caller.name] * (callers + 1) >= connections:
            raise GatewayOverloaded(
                "This key holds too many of the server's connections; try again shortly.", retry_after=1
            )

    def cancel_unauthorised(self, current: Callable[[Caller], Caller | None]) -> int:
        """Cancel the requests that their callers could not make now, and return their number.

        `current` returns a caller with its present rights.
        """
        cancelled = 0
        for id, (exchange, caller, scope, record) in tuple(self.by_id.items()):
            error = _denial(current(caller), scope, record.model)
            if error is not None and id not in self._spared:
                record.cancelled_with = error  # first: the task reads it when it is cancelled
                exchange.cancel()
                cancelled += 1
        return cancelled

    def cancel_run(self, run: str) -> bool:
        """Cancel the request that makes this run, and return whether there is one here."""
        for exchange, _, _, record in self.by_id.values():
            if record.run == run and record.cancelled_with is None:
                record.cancelled_with = ClientRequestError("The run was cancelled.", code=RUN_CANCELLED)
                exchange.cancel()
                return True
        return False


def _denial(caller: Caller | None, scope: str, model: str) -> ToolgateError | None:
    if caller is None:
        return Unauthenticated("The key of this request is no longer valid, so that the request was ended.")
    if scope not in caller.scopes:
        return Forbidden(f"This key lacks the scope {scope} by now.", code="missing_scope")
    return no_such_model(model) if model and not caller.may_use(model) else None
