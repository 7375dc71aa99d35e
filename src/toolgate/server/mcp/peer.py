"""The other end of a conversation: who it is, what it speaks and what it still waits for. Knows no transport."""

from collections.abc import Callable

from toolgate.server.callers.auth import Caller
from toolgate.server.mcp.jsonrpc import INVALID_REQUEST, Id, Request, RpcError
from toolgate.server.mcp.revisions import LATEST_LEGACY, Level


class Peer:
    """A client; `session` names the conversation where there is one, `level` is the least important log it wants."""

    __slots__ = ("_running", "caller", "hang_up", "level", "revision", "session", "touched")

    def __init__(
        self, caller: Caller, revision: str = LATEST_LEGACY, level: Level | None = None, session: str = ""
    ) -> None:
        self.caller = caller
        self.revision = revision
        self.level = level
        self.session = session
        self.touched = 0.0
        self.hang_up: Callable[[], None] | None = None  # ends the stream on which it listens for changes
        self._running: dict[Id, Callable[[], object]] = {}

    @property
    def busy(self) -> bool:
        """Whether it waits for something."""
        return bool(self._running) or self.hang_up is not None

    def begin(self, request: Request, cancel: Callable[[], object]) -> None:
        """It waits for this answer; two requests that cannot be told apart are refused."""
        if request.id in self._running:
            raise RpcError(INVALID_REQUEST, "Another request with this id is still running.", id=request.id)
        self._running[request.id] = cancel

    def end(self, request: Request) -> None:
        """It has its answer."""
        self._running.pop(request.id, None)

    def cancel(self, id: object) -> None:
        """It no longer wants that answer; one that it never asked for, or has, is none to cancel."""
        cancel = self._running.get(id) if isinstance(id, str | int) else None
        if cancel is not None:
            cancel()

    def leave(self) -> None:
        """It is gone."""
        for cancel in tuple(self._running.values()):
            cancel()
        if self.hang_up is not None:
            self.hang_up()
