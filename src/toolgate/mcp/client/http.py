"""Connect to an MCP server over streamable HTTP: one POST for each message, with a session or without.

Redirects are not followed, since our headers and tokens would go with them. Time limits are the caller's.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

from toolgate.conversation.errors import ToolgateError, UpstreamUnavailable
from toolgate.mcp.client.backoff import Backoff
from toolgate.mcp.client.response_messages import EVENT_STREAM, media_type, read_error, read_messages
from toolgate.mcp.oauth.bearer import BearerTokenRefresher
from toolgate.mcp.protocol.headers import METHOD, NAME, NAME_PARAMS, PROTOCOL_VERSION, SESSION_ID, encode_value
from toolgate.mcp.protocol.jsonrpc import (
    INTERNAL_ERROR,
    Reply,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcResultResponse,
)
from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.revisions import CANCELLED, LIST_CHANGED, STATELESS
from toolgate.mcp.protocol.server_config import RemoteServerConfig
from toolgate.mcp.protocol.transport import (
    CheckUrl,
    HttpRequestSender,
    McpConnectionLost,
    McpError,
    McpHttpResponse,
    McpLoginRequired,
    McpResponseBroken,
    McpSessionExpired,
    OnMessage,
    RemoteMcpError,
)
from toolgate.tools.tool import ToolCallFailed

# Visible ASCII, as the protocol demands: a line break would let a server add headers to our requests.
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")
# For messages that expect no response: a server that hangs must delay neither a handshake nor our shutdown.
_SEND_SECONDS = 2.0


class HttpTransport:
    """Sends requests to one URL; several may run at once, and a failed one does not affect the others."""

    def __init__(
        self,
        server: RemoteServerConfig,
        http: HttpRequestSender,
        bearer: BearerTokenRefresher | None,
        check_url: CheckUrl | None,
    ) -> None:
        self._server = server
        self._http = http
        self._bearer = bearer
        self._check_url = check_url
        self._revision: str | None = None
        self._session: str | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def open(self, on_message: OnMessage) -> None:
        """Send nothing yet."""
        self.lost: asyncio.Future[McpConnectionLost] = asyncio.get_running_loop().create_future()
        self._on_message = on_message

    def set_revision(self, revision: str | None) -> None:
        """Name this revision in the headers of every request from now on."""
        self._revision = revision

    async def request(self, request: RpcRequest, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """Post a request and wait for its result.

        In the stateless protocol closing the connection cancels a request; before, that takes a notification.
        """
        # Proxies may route by these headers without reading the body.
        routing: dict[str, str] = {}
        if self._revision == STATELESS:
            routing[METHOD] = request.method
            name = request.params.get(NAME_PARAMS.get(request.method, ""))
            if name is not None:
                routing[NAME] = encode_value(str(name))
        try:
            response = await self._send("POST", request.encode(), {**routing, **headers}, request.method)
            try:
                return await self._result(response, request)
            finally:
                await response.aclose()
        except asyncio.CancelledError:
            if self._revision not in (None, STATELESS):  # None: a handshake must not be cancelled
                # A task of its own, because this one is being cancelled and must not wait for a server.
                task = asyncio.get_running_loop().create_task(
                    self.send(RpcNotification(CANCELLED, {"requestId": request.id}))
                )
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            raise
        except ToolgateError as error:
            raise McpResponseBroken(f"gave no answer: {error.message}") from None

    async def send(self, message: RpcNotification | Reply) -> None:
        """Post a message that expects no response, for two seconds at most."""
        with suppress(McpError, ToolgateError, TimeoutError):
            async with asyncio.timeout(_SEND_SECONDS):
                response = await self._send("POST", message.encode(), {}, "")
                await response.aclose()

    async def listen(self) -> None:
        """Keep a stream open for the server's own messages, where it offers one, and reopen it when it ends."""
        backoff = Backoff(asyncio.get_running_loop().time, first=1.0)
        while True:
            backoff.start()
            with suppress(RemoteMcpError, ToolgateError):
                response = await self._send("GET", b"", {}, "")
                try:
                    if response.status != 200 or media_type(response) != EVENT_STREAM:
                        break  # mostly 405: the server offers no such stream
                    async with aclosing(read_messages(response)) as messages:
                        async for message in messages:
                            if isinstance(message, RpcRequest | RpcNotification):
                                self._on_message(message)
                finally:
                    await response.aclose()
            await asyncio.sleep(backoff.seconds())
            self._on_message(RpcNotification(LIST_CHANGED))  # a change meanwhile was not notified
        await asyncio.Future()  # until cancelled

    async def aclose(self) -> None:
        """End the session, if there is one and the server can be reached."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        # A server keeps a session until it is deleted or times out.
        if self._session is not None and not self.lost.done():
            with suppress(McpError, ToolgateError, TimeoutError):
                async with asyncio.timeout(_SEND_SECONDS):
                    response = await self._send("DELETE", b"", {}, "")
                    await response.aclose()
        if not self.lost.done():
            self.lost.set_result(McpConnectionLost("was closed"))

    async def _send(self, method: str, body: bytes, headers: Mapping[str, str], rpc_method: str) -> McpHttpResponse:
        """Send a request, and once more with a new token if the old one is refused; a tool call is never sent again."""
        response = await self._send_once(method, body, headers, rpc_method)
        if response.status not in (401, 403):
            return response
        challenge = response.headers.get("www-authenticate", "")
        await response.aclose()
        if rpc_method == "tools/call":
            # This call may be the only one that is refused, as where the token's scope excludes one tool: the connection
            # stays for the others. The list that is requested next renews a token that is good for nothing any more.
            raise McpResponseBroken(f"refused our token (HTTP {response.status})")
        if self._bearer is not None and await self._bearer.renew(challenge):
            response = await self._send_once(method, body, headers, rpc_method)
            if response.status not in (401, 403):
                return response
            await response.aclose()
        raise self._lose(McpLoginRequired(f"wants a login (HTTP {response.status})"))

    async def _send_once(
        self, method: str, body: bytes, headers: Mapping[str, str], rpc_method: str
    ) -> McpHttpResponse:
        url = self._server.url
        all_headers = {name.lower(): value for name, value in self._server.headers.items()}
        all_headers["accept"] = EVENT_STREAM if method == "GET" else f"application/json, {EVENT_STREAM}"
        if method == "POST":
            all_headers["content-type"] = "application/json"
        if self._revision is not None:
            all_headers[PROTOCOL_VERSION] = self._revision
        if self._session is not None:
            all_headers[SESSION_ID] = self._session
        try:
            # At each request, since the name of the host may lead elsewhere by now.
            if self._check_url is not None:
                await self._check_url(url)
            # A configured header takes precedence over a login.
            if (
                "authorization" not in all_headers
                and self._bearer is not None
                and (token := await self._bearer.token())
            ):
                all_headers["authorization"] = f"Bearer {token}"
            all_headers |= headers
            return await self._http.send(method, url, all_headers, body, once=rpc_method == "tools/call")
        except ToolCallFailed as refusal:  # the egress check, whose messages are written for models
            raise RemoteMcpError(f"may not be asked: {refusal}", INTERNAL_ERROR) from None
        except UpstreamUnavailable as error:
            raise self._lose(McpConnectionLost(f"cannot be reached: {error.message}")) from None

    async def _result(self, response: McpHttpResponse, request: RpcRequest) -> Mapping[str, Any]:
        if not 200 <= response.status < 300:
            raise await self._error(response)
        if request.method == "initialize":
            session = response.headers.get(SESSION_ID)
            if session is not None and not _SESSION_ID.fullmatch(session):
                raise RemoteMcpError("gave a session id that no header can carry", INTERNAL_ERROR)
            self._session = session
        async with aclosing(read_messages(response)) as messages:
            async for message in messages:
                match message:
                    case RpcResultResponse(id, result) if id == request.id and type(id) is int:
                        return result
                    # An error without an id is of this request, too: the server could not read it.
                    case RpcErrorResponse(id, code, text, data) if id is None or (id == request.id and type(id) is int):
                        raise RemoteMcpError(text, code, data)
                    case RpcRequest() | RpcNotification():
                        self._on_message(message)
        raise McpResponseBroken("ended its answer before it had given one")

    async def _error(self, response: McpHttpResponse) -> McpError:
        error = await read_error(response)
        # The standard demands 404 for an expired session; servers made from a well-known example send 400 and a sentence.
        expired = response.status == 404 or (
            response.status == 400 and error is not None and "session" in error.message.lower()
        )
        if expired and self._session is not None:
            return self._lose(McpSessionExpired("no longer knows our session"))
        if error is not None:
            return RemoteMcpError(error.message, error.code, error.data)
        if not 300 <= response.status < 400:
            return RemoteMcpError(f"answered HTTP {response.status}", INTERNAL_ERROR)
        try:
            host = urlsplit(response.headers.get("location", "")).hostname or "itself"
        except ValueError:
            host = "nowhere"
        message = (
            f"answers with a redirect to {printable(host, 100)}, which is not followed: configure the final address"
        )
        return RemoteMcpError(message, INTERNAL_ERROR)

    def _lose(self, loss: McpConnectionLost) -> McpConnectionLost:
        if not self.lost.done():
            self.lost.set_result(loss)
        return loss
