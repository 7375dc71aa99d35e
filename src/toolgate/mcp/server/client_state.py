"""The state of one MCP client: who calls, in which revision, and which of its requests are running. Knows no transport."""

from collections.abc import Callable

from toolgate.auth.authenticator import Caller
from toolgate.mcp.protocol.jsonrpc import INVALID_REQUEST, Id, RpcRequest, RpcRequestRefused
from toolgate.mcp.protocol.revisions import LATEST_WITH_HANDSHAKE, Level


class McpClientState:
    """A client; `session` is its session id, empty without one, and `level` the lowest log level that it receives."""

    __slots__ = ("_running", "caller", "close_stream", "last_used", "level", "revision", "session")

    def __init__(
        self, caller: Caller, revision: str = LATEST_WITH_HANDSHAKE, level: Level | None = None, session: str = ""
    ) -> None:
        self.caller = caller
        self.revision = revision
        self.level = level
        self.session = session
        self.last_used = 0.0
        self.close_stream: Callable[[], None] | None = None  # ends the stream of notifications, while one is open
        self._running: dict[Id, Callable[[], object]] = {}

    @property
    def busy(self) -> bool:
        """Return whether a request is running or a stream of notifications is open."""
        return bool(self._running) or self.close_stream is not None

    def begin(self, request: RpcRequest, cancel: Callable[[], object]) -> None:
        """Register a running request; RpcRequestRefused if another with this id is running."""
        if request.id in self._running:
            raise RpcRequestRefused(INVALID_REQUEST, "Another request with this id is still running.", id=request.id)
        self._running[request.id] = cancel

    def end(self, request: RpcRequest) -> None:
        """Remove a request that was answered."""
        self._running.pop(request.id, None)

    def cancel(self, id: object) -> None:
        """Cancel the running request of this id; an unknown id is ignored, as the request may just have ended."""
        # Exactly these types: `True` is no id, and a dictionary would take it for 1.
        cancel = self._running.get(id) if type(id) is str or type(id) is int else None
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """Cancel all running requests and end the stream of notifications."""
        for cancel in tuple(self._running.values()):
            cancel()
        if self.close_stream is not None:
            self.close_stream()
