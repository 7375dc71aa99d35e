"""The sessions of clients that introduced themselves by `initialize`: each is known to its own caller only.

They are kept in this process. A client whose session is gone is told so, and by the protocol begins a new one.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from toolgate.conversation.errors import NotFound, RateLimited
from toolgate.server.callers.auth import Caller
from toolgate.server.mcp.peer import Peer

Clock = Callable[[], float]


class Sessions:
    """Open sessions by caller and id, the one unused for longest first."""

    def __init__(self, per_caller: int = 1000, idle_seconds: float = 3600.0, clock: Clock = time.monotonic) -> None:
        """With `per_caller` 0 there are no sessions, and any node can answer any request."""
        self._per_caller = per_caller
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._open: dict[str, OrderedDict[str, Peer]] = {}

    def open(self, peer: Peer) -> str | None:
        """Begin a session for a client that has introduced itself; its id, or None where there are no sessions."""
        if not self._per_caller:
            return None
        own = self._open.setdefault(peer.caller.name, OrderedDict())
        self._expire(own)
        if len(own) >= self._per_caller:
            self._drop_oldest(own)
        peer.session = secrets.token_urlsafe(24)
        peer.touched = self._clock()
        own[peer.session] = peer
        return peer.session

    def find(self, id: str, caller: Caller) -> Peer:
        """The caller's session of this id, from now on unused for no time; NotFound also for anybody else's."""
        own = self._open.get(caller.name, OrderedDict())
        self._expire(own)
        peer = own.get(id)
        if peer is None:
            raise NotFound("There is no such session, or it has ended: initialize a new one.", code="unknown_session")
        peer.caller = caller  # their rights may have changed since
        peer.touched = self._clock()
        own.move_to_end(id)
        return peer

    def close(self, id: str, caller: Caller) -> None:
        """End a session and everything its client waits for."""
        peer = self.find(id, caller)
        del self._open[caller.name][id]
        peer.leave()

    def _expire(self, own: OrderedDict[str, Peer]) -> None:
        now = self._clock()
        while own and now - next(iter(own.values())).touched > self._idle_seconds:
            id, peer = own.popitem(last=False)
            if peer.busy:
                peer.touched, own[id] = now, peer

    def _drop_oldest(self, own: OrderedDict[str, Peer]) -> None:
        id = next((id for id, peer in own.items() if not peer.busy), None)
        if id is None:
            raise RateLimited("Too many sessions of this key are in use; end one first.", retry_after=30)
        del own[id]
