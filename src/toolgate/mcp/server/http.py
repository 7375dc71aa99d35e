"""Serve MCP over streamable HTTP: one path that takes POST, GET and DELETE.

A request gets a JSON response if it is ready soon and no notification comes before it; otherwise an event stream, kept alive
by comments while a tool runs or a person decides. When the client disconnects, its calls are cancelled, in every revision:
streams cannot be resumed here, so the response could not be delivered.
Knows headers, statuses and streams. Must not know what methods mean.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.conversation.errors import ClientRequestError, Conflict, Forbidden, InvalidRequest
from toolgate.http.application import AdmittedHttpRequest
from toolgate.http.exchange import HttpExchange
from toolgate.mcp.protocol.headers import PROTOCOL_VERSION, SESSION_ID
from toolgate.mcp.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcRequestRefused,
    RpcResultResponse,
    parse_message,
)
from toolgate.mcp.protocol.revisions import CANCELLED, DEFAULT_OVER_HTTP, STATELESS, WITH_HANDSHAKE, has_batches
from toolgate.mcp.server.client_state import McpClientState
from toolgate.mcp.server.header_check import check_argument_headers, check_headers
from toolgate.mcp.server.methods import McpMethods, OnCrash
from toolgate.mcp.server.outbox import McpOutbox, Outgoing
from toolgate.mcp.server.request_meta import is_stateless, read_meta, require_meta
from toolgate.mcp.server.sessions import McpSessions
from toolgate.mcp.server.tool_catalog_protocol import ToolCatalog
from toolgate.mcp.server.tool_update_listeners import ToolUpdateListeners
from toolgate.telemetry.request_log import Telemetry

# All requests of a batch run at once.
LARGEST_BATCH = 50
_EVENT_STREAM = b"text/event-stream"
_SESSION = SESSION_ID.encode()
_VERSION = PROTOCOL_VERSION.encode()
_PING = b": ping\n"  # no blank line: some clients take one for an empty event
# Statuses of errors in 2026-07-28; in older revisions the response to a readable request is always 200.
_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}


class McpPostRequest(Struct, frozen=True):
    """Requests to answer together: one, or the requests of a batch."""

    http: AdmittedHttpRequest
    client: McpClientState
    requests: Sequence[RpcRequest]
    batch: bool = False


class McpEndpoint:
    """The handlers of the MCP endpoint."""

    def __init__(
        self,
        catalog: ToolCatalog,
        telemetry: Telemetry,
        timings: StreamKeepaliveTimings | None = None,
        sessions: McpSessions | None = None,
        instructions: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._telemetry = telemetry
        self._timings = timings or StreamKeepaliveTimings()
        self._sessions = sessions or McpSessions()
        self._updates = ToolUpdateListeners(catalog.subscribe)
        self._methods = McpMethods(catalog, self._updates, instructions)

    def close(self) -> None:
        """End the streams that only wait for notifications; running requests go on."""
        self._updates.close()

    async def post(self, http: AdmittedHttpRequest) -> None:
        """Receive a message, or before 2025-06-18 a batch, and answer its requests."""
        exchange = http.exchange
        _check_origin(exchange)
        _accepts_events(exchange)  # 406 before the body is read
        http.record.dialect = "mcp"
        body = await exchange.json()
        try:
            if isinstance(body, list):
                await self._post_batch(http, body)
                return
            message = parse_message(body)
            if is_stateless(message, exchange.header(_VERSION)):
                await self._post_stateless(http, message)
            else:
                await self._post_with_handshake(http, message)
        except RpcRequestRefused as error:  # the message is refused before it is handled
            status = _STATUS.get(error.code, 400)
            http.record.note_error(ClientRequestError(error.message, status=status, code=f"rpc{error.code}"))
            await exchange.respond(status, error.response().encode())

    async def get(self, http: AdmittedHttpRequest) -> None:
        """Open a stream that notifies a client with a handshake whenever tools change."""
        exchange = http.exchange
        _check_origin(exchange)
        if exchange.method == "HEAD" or exchange.header(_VERSION) == STATELESS:
            raise _method_not_allowed(exchange)
        if not _accepts_events(exchange):
            raise _not_acceptable()
        http.record.dialect, http.record.stream = "mcp", True
        client = self._client_of(http)
        # The protocol allows several streams, but each message may be sent on one of them only.
        if client.close_stream is not None:
            raise Conflict("This session already has a stream open.", code="stream_open")
        exchange.cancel_when_client_leaves()
        outbox = McpOutbox()
        notifying = asyncio.ensure_future(self._methods.notify_changes(outbox.notify))
        notifying.add_done_callback(lambda _: outbox.close())
        client.close_stream = outbox.close
        try:
            await self._stream(exchange, outbox)
        except asyncio.CancelledError:
            if http.record.cancelled_with is None:
                raise
            http.record.note_error(http.record.cancelled_with)
            await exchange.end()
        finally:
            client.close_stream = None
            await _cancel(notifying)

    async def delete(self, http: AdmittedHttpRequest) -> None:
        """End a session."""
        exchange = http.exchange
        _check_origin(exchange)
        if exchange.header(_VERSION) == STATELESS:
            raise _method_not_allowed(exchange)
        http.record.dialect = "mcp"
        session = exchange.header(_SESSION)
        if session is None:
            raise InvalidRequest("The header Mcp-Session-Id is missing.", code="missing_session")
        self._sessions.close(session, http.caller)
        await exchange.respond(204, b"")

    async def _post_stateless(self, http: AdmittedHttpRequest, message: RpcRequest | RpcNotification | None) -> None:
        exchange = http.exchange
        if isinstance(message, RpcNotification):  # this revision has none over HTTP, but clients send them
            await exchange.respond(202, b"")
            return
        if message is None:
            raise RpcRequestRefused(INVALID_REQUEST, "This server sends no requests, so it takes no responses.")
        # Checked first: a revision that the body lacks would else be reported as a header that differs from it.
        require_meta(message)
        check_headers(message, exchange.headers)
        meta = read_meta(message)
        name = message.params.get("name")
        if message.method == "tools/call" and isinstance(name, str):
            spec = self._catalog.find(http.caller, name)
            if spec is None:  # its source may still be connecting
                exchange.cancel_when_client_leaves()
                await self._catalog.settled()
                spec = self._catalog.find(http.caller, name)
            if spec is None:
                raise RpcRequestRefused(INVALID_PARAMS, f"Unknown tool: {name[:200]}", id=message.id)
            check_argument_headers(message, spec.input_schema, exchange.headers)
        if message.method == "subscriptions/listen" and not _accepts_events(exchange):
            raise _not_acceptable()
        await self._answer(McpPostRequest(http, McpClientState(http.caller, meta.revision, meta.level), (message,)))

    async def _post_with_handshake(
        self, http: AdmittedHttpRequest, message: RpcRequest | RpcNotification | None
    ) -> None:
        if isinstance(message, RpcRequest) and message.method == "initialize":
            client = McpClientState(http.caller)
            response = await self._methods.reply(message, client, lambda _: None, self._on_crash(http))
            session = self._sessions.open(client) if isinstance(response, RpcResultResponse) else None
            headers = [(_SESSION, session.encode())] if session else []
            await http.exchange.respond(200, response.encode(), headers)
            return
        client = self._client_of(http)
        if isinstance(message, RpcRequest):
            await self._answer(McpPostRequest(http, client, (message,)))
            return
        if message is not None:
            _handle_notification(message, client)
        await http.exchange.respond(202, b"")

    async def _post_batch(self, http: AdmittedHttpRequest, body: list[Any]) -> None:
        client = None if http.exchange.header(_VERSION) == STATELESS else self._client_of(http)
        if client is None or not has_batches(client.revision):
            raise RpcRequestRefused(INVALID_REQUEST, "This revision of the protocol knows no batches.")
        if not 0 < len(body) <= LARGEST_BATCH:
            raise RpcRequestRefused(INVALID_REQUEST, f"A batch holds 1 to {LARGEST_BATCH} messages.")
        messages = [parse_message(value) for value in body]
        requests = [message for message in messages if isinstance(message, RpcRequest)]
        if any(request.method == "initialize" for request in requests):
            raise RpcRequestRefused(INVALID_REQUEST, "initialize must not be part of a batch.")
        for message in messages:
            if isinstance(message, RpcNotification):
                _handle_notification(message, client)
        if requests:
            await self._answer(McpPostRequest(http, client, requests, batch=True))
        else:
            await http.exchange.respond(202, b"")

    def _client_of(self, http: AdmittedHttpRequest) -> McpClientState:
        """Return the client of the session, or without a session the client that the headers describe."""
        version, session = http.exchange.header(_VERSION), http.exchange.header(_SESSION)
        if version is not None and version not in WITH_HANDSHAKE:
            supported = f"{STATELESS} and {', '.join(WITH_HANDSHAKE)}"
            raise InvalidRequest(
                f"The protocol version {version[:40]!r} is not supported; {supported} are.",
                code="unsupported_protocol_version",
            )
        if session is not None:
            return self._sessions.find(session, http.caller)
        return McpClientState(http.caller, version or DEFAULT_OVER_HTTP)

    async def _answer(self, posted: McpPostRequest) -> None:
        exchange, outbox = posted.http.exchange, McpOutbox()
        takes_events = _accepts_events(exchange)
        exchange.cancel_when_client_leaves()
        replies = asyncio.ensure_future(self._reply_all(posted, outbox))
        try:
            # A stream cannot carry a status any more, so that short calls are waited for and answered as JSON.
            if takes_events:
                await outbox.wait_due(self._timings.first_event)
            else:
                await outbox.wait_closed()
            if outbox.closed and not (outbox.notified and takes_events):
                await _respond(posted, outbox.take())
            else:
                await self._stream_replies(posted, outbox)
        finally:
            await _cancel(replies)

    async def _reply_all(self, posted: McpPostRequest, outbox: McpOutbox) -> None:
        """Answer all requests concurrently; one that its client cancels gets no response."""
        try:
            async with asyncio.TaskGroup() as group:
                for request in posted.requests:
                    group.create_task(self._reply(posted, request, outbox))
        finally:
            outbox.close()

    async def _reply(self, posted: McpPostRequest, request: RpcRequest, outbox: McpOutbox) -> None:
        task = asyncio.current_task()
        assert task is not None
        if request.method == "tools/call":
            posted.http.record.note_call(str(request.params.get("name"))[:200])
        try:
            posted.client.begin(request, task.cancel)
        except RpcRequestRefused as error:
            outbox.respond(error.response())
            return
        try:
            on_crash = self._on_crash(posted.http)
            outbox.respond(await self._methods.reply(request, posted.client, outbox.notify, on_crash))
        finally:
            posted.client.end(request)

    async def _stream_replies(self, posted: McpPostRequest, outbox: McpOutbox) -> None:
        exchange, record = posted.http.exchange, posted.http.record
        record.stream = True
        try:
            await self._stream(exchange, outbox)
        except asyncio.CancelledError:
            if exchange.client_left or not exchange.started:
                raise
            # The server stops, or the key is not valid any more: the stream ends with errors, not in the middle.
            for request in posted.requests:  # the client ignores a second response to the same request
                error = RpcErrorResponse(request.id, INTERNAL_ERROR, record.end_error().message)
                await exchange.write(_encode_event(error))
            await exchange.end()

    async def _stream(self, exchange: HttpExchange, outbox: McpOutbox) -> None:
        """Send messages as they come, and a comment after each interval without one."""
        self._telemetry.stream_opened()
        try:
            await exchange.start(_EVENT_STREAM)
            await exchange.write(_PING)
            while True:
                for message in outbox.take():
                    await exchange.write(_encode_event(message))
                if outbox.closed:
                    break
                if not await outbox.wait(self._timings.keepalive):
                    await exchange.write(_PING)
            await exchange.end()
        finally:
            self._telemetry.stream_closed()

    def _on_crash(self, http: AdmittedHttpRequest) -> OnCrash:
        return lambda error: self._telemetry.crashed(http.record, error)


async def _respond(posted: McpPostRequest, messages: list[Outgoing]) -> None:
    """Send the responses as JSON; if all requests were cancelled, end the HTTP response without a message."""
    exchange = posted.http.exchange
    replies = [message for message in messages if not isinstance(message, RpcNotification)]
    if not replies:
        await exchange.start(_EVENT_STREAM)
        await exchange.end()
    elif posted.batch:
        await exchange.respond(200, b"[" + b",".join([reply.encode() for reply in replies]) + b"]")
    else:
        reply, status = replies[0], 200
        if isinstance(reply, RpcErrorResponse) and posted.client.revision == STATELESS:
            status = _STATUS.get(reply.code, 200)
        await exchange.respond(status, reply.encode())


def _handle_notification(message: RpcNotification, client: McpClientState) -> None:
    if message.method == CANCELLED:
        client.cancel(message.params.get("requestId"))


def _encode_event(message: Outgoing) -> bytes:
    return b"event: message\ndata: " + message.encode() + b"\n\n"


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():  # a task that crashed raises here, into the log
        task.result()


def _accepts_events(exchange: HttpExchange) -> bool:
    """Return whether the client takes an event stream; one that takes neither that nor JSON is refused."""
    accept = exchange.header(b"accept")
    if accept is None:
        return False
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    if not kinds & {"application/json", "application/*", "*/*", "text/event-stream", "text/*"}:
        raise _not_acceptable()
    return bool(kinds & {"text/event-stream", "text/*"})


def _check_origin(exchange: HttpExchange) -> None:
    """Refuse a foreign web page, even with a valid key, as the protocol demands; our own pages are allowed."""
    # The pages of any site can send requests to this machine's loopback, where no key may be demanded.
    # The application has added the CORS header for the origins that are configured.
    origin = exchange.header(b"origin")
    if origin is None or any(name == b"access-control-allow-origin" for name, _ in exchange.extra_headers):
        return
    if origin.partition("://")[2] != exchange.header(b"host"):
        raise Forbidden(
            "Web pages of this origin may not call this server; add the origin to server.origins.",
            code="origin_not_allowed",
        )


def _method_not_allowed(exchange: HttpExchange) -> ClientRequestError:
    exchange.extra_headers.append((b"allow", b"POST"))
    return ClientRequestError("This revision of the protocol allows only POST.", status=405, code="method_not_allowed")


def _not_acceptable() -> ClientRequestError:
    message = "The client must accept application/json and text/event-stream."
    return ClientRequestError(message, status=406, code="not_acceptable")
