"""Let editors join at /bridge, and list their windows.

The request for the upgrade must come from no web page (any Origin is refused) and either from this machine, where the
editor then proves that it can read the token file, or with a key of the scope `bridge`. The frames on the socket are in
`toolgate.bridge.session`.
"""

from typing import Any

from toolgate.api.editor_approvals import EditorApprovals
from toolgate.auth.authenticator import PUBLIC
from toolgate.bridge.frames import MAX_FRAME
from toolgate.bridge.handshake import BridgeCredentials
from toolgate.bridge.remote_windows import BridgeBusMember
from toolgate.bridge.session import BridgeSessionOptions, EditorSession
from toolgate.bridge.windows import EditorWindows
from toolgate.config import is_loopback
from toolgate.conversation.errors import Forbidden, GatewayOverloaded, NotFound, Unauthenticated
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.http.websocket import GOING_AWAY, WebSocketLimits, WebSocketTimeouts, accept
from toolgate.wire.jsontext import encode

PATH = "/bridge"
# More small frames than on other sockets: an editor sends every delta of a model's answer as one.
_LIMITS = WebSocketLimits(MAX_FRAME, small_burst=65_536, small_per_second=8_192.0)
_MAX_SOCKETS, _MAX_SOCKETS_OF_KEY = 128, 64


class BridgeEndpoints:
    """The sockets of editors; they outlive the configuration that they were opened under."""

    def __init__(
        self,
        windows: EditorWindows,
        sharing: BridgeBusMember,
    ) -> None:
        """`sharing` lets other processes reach the windows that join here."""
        self._windows = windows
        self._sharing = sharing
        self._approvals: EditorApprovals | None = None
        self._timeouts = WebSocketTimeouts()
        self._token = ""
        self._sessions: set[EditorSession] = set()

    def use_token(self, token: str) -> None:
        """Let editors of this machine join by this token; without one they need a key."""
        self._token = token

    def end_all(self, code: int, reason: str) -> None:
        """Close the connections of all editors."""
        for session in self._sessions:
            session.end(code, reason)

    def show_approvals(self, approvals: EditorApprovals) -> None:
        """Show approvals in the windows that join from now on."""
        self._approvals = approvals

    def endpoints(self, options: BridgeSessionOptions | None, approvals: bool = True) -> list[HttpRoute]:
        """Return the endpoints; without `options` no editor may join, without `approvals` none is shown there."""
        errors = OPENAI_CHAT.server

        async def connect(call: AdmittedHttpRequest) -> None:
            """Open the bridge to an editor: a WebSocket with the protocol toolgate-bridge.v1."""
            if options is None:
                raise NotFound("The bridge to editors is turned off here (`vscode.enabled`).", code="bridge_disabled")
            await self._connect(call, options, self._approvals if approvals else None)

        return [
            HttpRoute("GET", PATH, connect, errors, scope="bridge", proves_itself=True),
            HttpRoute("GET", "/v1/bridge", self.list, errors, scope="tools"),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List the windows of editors that have joined, the one that was focused last first."""
        data: list[dict[str, Any]] = []
        for window in self._windows.ordered if call.caller.editor else ():
            state = window.state
            data.append(
                {
                    "object": "bridge.window",
                    "id": state.window.id,
                    "editor": f"{state.editor.name} {state.editor.version}".strip(),
                    "folders": state.window.folders,
                    "remote": state.window.remote,
                    "focused": state.window.focused,
                    "owner": state.owner or None,
                    "models": [f"{one.vendor}/{one.id}" for one in state.models],
                    "tools": len(state.tools),
                    "asks": window.asks.busy,
                    "invocations": window.invocations.busy,
                    "since": state.since,
                }
            )
        await call.exchange.respond(200, encode({"object": "list", "data": data}))

    async def _connect(
        self, call: AdmittedHttpRequest, options: BridgeSessionOptions, approvals: EditorApprovals | None
    ) -> None:
        admission = self._admit(call)
        of_key = sum([one.owner == admission.owner for one in self._sessions])
        if len(self._sessions) >= _MAX_SOCKETS or of_key >= _MAX_SOCKETS_OF_KEY:
            raise GatewayOverloaded(
                "Too many editors are connected already.", code="too_many_websockets", retry_after=5
            )

        def drain() -> None:
            session.end(GOING_AWAY, "The server is shutting down.")

        socket = accept(call.exchange, self._timeouts, drain, _LIMITS)
        socket.busy = True  # the session has a heartbeat of its own
        call.record.status = 101

        def changed(session: EditorSession) -> None:
            self._sharing.announce(session)
            if approvals is not None:
                approvals.window_changed(session)

        def left(session: EditorSession) -> None:
            self._sharing.withdraw(session)
            if approvals is not None:
                approvals.window_left(session)

        session = EditorSession(
            socket,
            admission,
            self._windows,
            options,
            member=self._sharing.id_prefix,
            on_answer=approvals.answer if approvals is not None else None,
            on_change=changed,
            on_leave=left,
        )
        self._sessions.add(session)
        try:
            await session.serve()
        finally:
            self._sessions.discard(session)

    def _admit(self, call: AdmittedHttpRequest) -> BridgeCredentials:
        """Decide how the editor may join; what a request may not do is refused before the upgrade."""
        exchange = call.exchange
        if exchange.header(b"origin") is not None:
            raise Forbidden("Web pages may not open the bridge.", code="origin_not_allowed")
        if call.caller is not PUBLIC:
            return BridgeCredentials(owner=call.caller.name)
        # Host without its port, as in `localhost:8080` or `[::1]:8080`. It is checked as well as the address: a web page
        # whose name is made to resolve to this machine (DNS rebinding) sends its own name.
        host = exchange.header(b"host") or ""
        host = host.rpartition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if not is_loopback(exchange.client_host) or not is_loopback(host):
            raise Unauthenticated("An editor on another machine needs a key with the scope bridge.")
        if not self._token:
            raise Forbidden(
                "The token file of the bridge cannot be used (the server's log says why): join with a key.",
                code="no_bridge_token",
            )
        # The editor's proof names the address that it has dialled, so that another server cannot pass it on to this one.
        server, port = exchange.server_address
        address = f"[{server}]:{port}" if ":" in server else f"{server}:{port}"
        return BridgeCredentials(token=self._token, address=address)
