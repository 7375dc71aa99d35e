"""Store the sessions of clients that sent `initialize`; each belongs to one caller.

They live in this process. A client whose session is gone gets 404 and, by the protocol, initializes a new one.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from toolgate.auth.authenticator import Caller
from toolgate.conversation.errors import NotFound, RateLimited
from toolgate.mcp.server.client_state import McpClientState

Clock = Callable[[], float]


class McpSessions:
    """Open sessions by caller and id, the least recently used first."""

    def __init__(self, per_caller: int = 1000, idle_seconds: float = 3600.0, clock: Clock = time.monotonic) -> None:
        """With `per_caller` 0 there are no sessions, and any node can answer any request."""
        self._per_caller = per_caller
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._open: dict[str, OrderedDict[str, McpClientState]] = {}

    def open(self, client: McpClientState) -> str | None:
        """Open a session for a client and return its id, or None where there are no sessions.

        A caller with too many loses the least recently used one that is not busy; RateLimited if all are.
        """
        if not self._per_caller:
            return None
        own = self._open.setdefault(client.caller.name, OrderedDict())
        self._expire(own)
        if len(own) >= self._per_caller:
            unused = next((id for id, other in own.items() if not other.busy), None)
            if unused is None:
                raise RateLimited("Too many sessions of this key are in use; end one first.", retry_after=30)
            del own[unused]
        client.session = secrets.token_urlsafe(24)
        client.last_used = self._clock()
        own[client.session] = client
        return client.session

    def find(self, id: str, caller: Caller) -> McpClientState:
        """Return the caller's session of this id and mark it as used; NotFound for another caller's, too."""
        own = self._open.get(caller.name, OrderedDict())
        self._expire(own)
        client = own.get(id)
        if client is None:
            raise NotFound("There is no such session, or it has ended: initialize a new one.", code="unknown_session")
        client.caller = caller  # the rights of the key may have changed since
        client.last_used = self._clock()
        own.move_to_end(id)
        return client

    def close(self, id: str, caller: Caller) -> None:
        """End a session and everything that runs in it."""
        client = self.find(id, caller)
        del self._open[caller.name][id]
        client.close()

    def _expire(self, own: OrderedDict[str, McpClientState]) -> None:
        now = self._clock()
        # The least recently used is first, so that the first one still in time ends the search.
        while own and now - next(iter(own.values())).last_used > self._idle_seconds:
            id, client = own.popitem(last=False)
            if client.busy:
                client.last_used, own[id] = now, client
