"""Streamable HTTP: one path that takes POST, GET and DELETE.

A request is answered in one piece if its answer is there soon and nothing had to be told before; otherwise by a stream of
events, kept alive by comments while a tool runs or a person decides. When the client leaves, its calls are cancelled,
in every revision: streams cannot be resumed here, so nobody could hear the answer.
It knows headers, statuses and streams. It must not know what methods mean.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import ClientFault, Conflict, Forbidden, InvalidRequest
from toolgate.server.app import Call
from toolgate.server.endpoints import Pace
from toolgate.server.exchange import Exchange
from toolgate.server.mcp import envelope, jsonrpc, mirrors
from toolgate.server.mcp.changes import Changes
from toolgate.server.mcp.door import Door
from toolgate.server.mcp.jsonrpc import Json, Notification, Request, RpcError
from toolgate.server.mcp.outbox import Outbox
from toolgate.server.mcp.peer import Peer
from toolgate.server.mcp.revisions import LEGACY, MODERN, UNSAID, has_batches
from toolgate.server.mcp.service import Crashed, Service
from toolgate.server.mcp.sessions import Sessions
from toolgate.telemetry.traced import Traced
from toolgate.wire.jsontext import encode

LARGEST_BATCH = 50
_EVENTS = b"text/event-stream"
_SESSION = b"mcp-session-id"
_PING = b": ping\n"  # no blank line: some clients take one for an empty event
_STATUS = {
    jsonrpc.PARSE_ERROR: 400,
    jsonrpc.INVALID_REQUEST: 400,
    jsonrpc.INVALID_PARAMS: 400,
    jsonrpc.HEADER_MISMATCH: 400,
    jsonrpc.UNSUPPORTED_VERSION: 400,
    jsonrpc.METHOD_NOT_FOUND: 404,
}
"""How 2026-07-28 wants errors told; before, whatever a request that could be read leads to is 200."""


class Post(Struct, frozen=True):
    """Requests to answer together: one, or the requests of a batch."""

    call: Call
    peer: Peer
    requests: Sequence[Request]
    batch: bool = False


class Mcp:
    """The handlers of the MCP endpoint."""

    def __init__(
        self,
        door: Door,
        traced: Traced,
        pace: Pace | None = None,
        sessions: Sessions | None = None,
        instructions: str | None = None,
    ) -> None:
        self._door = door
        self._traced = traced
        self._pace = pace or Pace()
        self._sessions = sessions or Sessions()
        self._changes = Changes(door.subscribe)
        self._service = Service(door, self._changes, instructions)

    def close(self) -> None:
        """End every stream that only waits for changes; what is being answered is not cut off."""
        self._changes.close()

    async def post(self, call: Call) -> None:
        """Take a message, or before 2025-06-18 a batch of them, and answer what wants an answer."""
        exchange = call.exchange
        _refuse_foreign_pages(exchange)
        _accepts_events(exchange)
        call.record.dialect = "mcp"
        body = await exchange.json()
        try:
            if isinstance(body, list):
                await self._take_batch(call, body)
                return
            message = jsonrpc.read(body)
            if envelope.is_modern(message, exchange.header(mirrors.VERSION_HEADER)):
                await self._take_modern(call, message)
            else:
                await self._take_legacy(call, message)
        except RpcError as refusal:
            await _refuse(call, refusal)

    async def get(self, call: Call) -> None:
        """Tell a client of the older era whenever tools change."""
        exchange = call.exchange
        _refuse_foreign_pages(exchange)
        if exchange.method == "HEAD" or exchange.header(mirrors.VERSION_HEADER) == MODERN:
            raise _not_allowed(exchange)
        if not _accepts_events(exchange):
            raise _not_acceptable()
        call.record.dialect, call.record.stream = "mcp", True
        peer = self._peer(call)
        if peer.hang_up is not None:
            raise Conflict("This session already has a stream open.", code="stream_open")
        exchange.cancel_when_client_leaves()
        outbox = Outbox()
        telling = asyncio.ensure_future(self._service.tell_changes(outbox.notify))
        telling.add_done_callback(lambda _: outbox.close())
        peer.hang_up = outbox.close
        try:
            await self._stream(exchange, outbox)
        except asyncio.CancelledError:
            if call.record.dismissed is None:
                raise
            call.record.note_error(call.record.dismissed)
            await exchange.end()
        finally:
            peer.hang_up = None
            await _stop(telling)

    async def delete(self, call: Call) -> None:
        """End a session."""
        exchange = call.exchange
        _refuse_foreign_pages(exchange)
        if exchange.header(mirrors.VERSION_HEADER) == MODERN:
            raise _not_allowed(exchange)
        call.record.dialect = "mcp"
        session = exchange.header(_SESSION)
        if session is None:
            raise InvalidRequest("The header Mcp-Session-Id is missing.", code="missing_session")
        self._sessions.close(session, call.caller)
        await exchange.respond(204, b"")

    async def _take_modern(self, call: Call, message: jsonrpc.Message) -> None:
        exchange = call.exchange
        if isinstance(message, Notification):  # there are none over HTTP in this revision, but clients send them
            await exchange.respond(202, b"")
            return
        if not isinstance(message, Request):
            raise RpcError(jsonrpc.INVALID_REQUEST, "Nothing was asked, so there is nothing to respond to.")
        envelope.require(message)
        mirrors.check(message, exchange.headers)
        opened = envelope.read(message)
        self._check_arguments(call, message)
        if message.method == "subscriptions/listen" and not _accepts_events(exchange):
            raise _not_acceptable()
        await self._answer(Post(call, Peer(call.caller, opened.revision, opened.level), (message,)))

    def _check_arguments(self, call: Call, request: Request) -> None:
        name = request.params.get("name")
        if request.method != "tools/call" or not isinstance(name, str):
            return
        spec = self._door.find(call.caller, name)
        if spec is None:
            raise RpcError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {name[:200]}", id=request.id)
        mirrors.check_arguments(request, spec.input_schema, call.exchange.headers)

    async def _take_legacy(self, call: Call, message: jsonrpc.Message) -> None:
        if isinstance(message, Request) and message.method == "initialize":
            await self._introduce(call, message)
            return
        peer = self._peer(call)
        if isinstance(message, Request):
            await self._answer(Post(call, peer, (message,)))
            return
        _note(message, peer)
        await call.exchange.respond(202, b"")

    async def _take_batch(self, call: Call, body: list[Any]) -> None:
        modern = call.exchange.header(mirrors.VERSION_HEADER) == MODERN
        peer = None if modern else self._peer(call)
        if peer is None or not has_batches(peer.revision):
            raise RpcError(jsonrpc.INVALID_REQUEST, "This revision of the protocol knows no batches.")
        if not 0 < len(body) <= LARGEST_BATCH:
            raise RpcError(jsonrpc.INVALID_REQUEST, f"A batch holds 1 to {LARGEST_BATCH} messages.")
        messages = [jsonrpc.read(value) for value in body]
        requests = [message for message in messages if isinstance(message, Request)]
        if any(request.method == "initialize" for request in requests):
            raise RpcError(jsonrpc.INVALID_REQUEST, "initialize must not be part of a batch.")
        for message in messages:
            _note(message, peer)
        if requests:
            await self._answer(Post(call, peer, requests, batch=True))
        else:
            await call.exchange.respond(202, b"")

    def _peer(self, call: Call) -> Peer:
        """The client by its session, or, if it has none, as its headers describe it."""
        version, session = call.exchange.header(mirrors.VERSION_HEADER), call.exchange.header(_SESSION)
        if version is not None and version not in LEGACY:
            raise InvalidRequest(
                f"The protocol version {version[:40]!r} is not spoken here; {MODERN} and {', '.join(LEGACY)} are.",
                code="unsupported_protocol_version",
            )
        if session is not None:
            return self._sessions.find(session, call.caller)
        return Peer(call.caller, version or UNSAID)

    async def _introduce(self, call: Call, request: Request) -> None:
        peer = Peer(call.caller)
        response = await self._service.reply(request, peer, lambda _: None, self._crashed(call))
        session = self._sessions.open(peer) if "result" in response else None
        headers = [(_SESSION, session.encode())] if session else []
        await call.exchange.respond(200, encode(response), headers)

    async def _answer(self, post: Post) -> None:
        exchange, outbox = post.call.exchange, Outbox()
        events = _accepts_events(exchange)
        exchange.cancel_when_client_leaves()
        work = asyncio.ensure_future(self._work(post, outbox))
        try:
            if events:
                await outbox.wait_due(self._pace.first_event)
            else:
                await outbox.wait_closed()
            if outbox.closed and not (outbox.notified and events):
                await _respond(post, outbox.take())
            else:
                await self._stream_answer(post, outbox)
        finally:
            await _stop(work)

    async def _work(self, post: Post, outbox: Outbox) -> None:
        """Answer every request at the same time; one that its client cancels gets no response."""
        try:
            async with asyncio.TaskGroup() as group:
                for request in post.requests:
                    group.create_task(self._reply(post, request, outbox))
        finally:
            outbox.close()

    async def _reply(self, post: Post, request: Request, outbox: Outbox) -> None:
        task = asyncio.current_task()
        assert task is not None
        if request.method == "tools/call":
            post.call.record.note_call(str(request.params.get("name"))[:200])
        try:
            post.peer.begin(request, task.cancel)
        except RpcError as refusal:
            outbox.respond(jsonrpc.error(request.id, refusal.code, refusal.message))
            return
        try:
            crashed = self._crashed(post.call)
            outbox.respond(await self._service.reply(request, post.peer, outbox.notify, crashed))
        finally:
            post.peer.end(request)

    async def _stream_answer(self, post: Post, outbox: Outbox) -> None:
        exchange = post.call.exchange
        post.call.record.stream = True
        try:
            await self._stream(exchange, outbox)
        except asyncio.CancelledError:
            if exchange.client_left or not exchange.started:
                raise
            for request in post.requests:  # one that has its answer already ignores this
                told = jsonrpc.error(request.id, jsonrpc.INTERNAL_ERROR, post.call.record.why_ended().message)
                await exchange.write(_event(told))
            await exchange.end()

    async def _stream(self, exchange: Exchange, outbox: Outbox) -> None:
        """Send messages as they come, and a comment whenever none came for so long."""
        self._traced.stream_opened()
        try:
            await exchange.start(_EVENTS)
            await exchange.write(_PING)
            while True:
                for message in outbox.take():
                    await exchange.write(_event(message))
                if outbox.closed:
                    break
                if not await outbox.wait(self._pace.keepalive):
                    await exchange.write(_PING)
            await exchange.end()
        finally:
            self._traced.stream_closed()

    def _crashed(self, call: Call) -> Crashed:
        return lambda defect: self._traced.crashed(call.record, defect)


async def _respond(post: Post, messages: list[Json]) -> None:
    """Answer in one piece; a request that was cancelled is owed nothing, but its HTTP request is."""
    exchange = post.call.exchange
    answers = [message for message in messages if "method" not in message]
    if not answers:
        await exchange.start(_EVENTS)
        await exchange.end()
    elif post.batch:
        await exchange.respond(200, encode(answers))
    else:
        failed = answers[0].get("error")
        status = _STATUS.get(failed["code"], 200) if failed and post.peer.revision == MODERN else 200
        await exchange.respond(status, encode(answers[0]))


async def _refuse(call: Call, refusal: RpcError) -> None:
    """Answer a message that is not even begun to be served."""
    status = _STATUS.get(refusal.code, 400)
    call.record.note_error(ClientFault(refusal.message, status=status, code=f"rpc{refusal.code}"))
    body = jsonrpc.error(refusal.id, refusal.code, refusal.message, refusal.data)
    await call.exchange.respond(status, encode(body))


def _note(message: jsonrpc.Message, peer: Peer) -> None:
    """Take note of a message that wants no response."""
    if isinstance(message, Notification) and message.method == "notifications/cancelled":
        peer.cancel(message.params.get("requestId"))


def _event(message: Json) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


async def _stop(work: asyncio.Future[None]) -> None:
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled():
        work.result()


def _accepts_events(exchange: Exchange) -> bool:
    """Whether the client takes a stream; one that takes neither that nor JSON is refused."""
    accept = exchange.header(b"accept")
    if accept is None:
        return False
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    if not kinds & {"application/json", "application/*", "*/*", "text/event-stream", "text/*"}:
        raise _not_acceptable()
    return bool(kinds & {"text/event-stream", "text/*"})


def _refuse_foreign_pages(exchange: Exchange) -> None:
    """By the protocol an Origin that is not welcome gets 403 even with a good key; our own pages are welcome."""
    origin = exchange.header(b"origin")
    if origin is None or any(name == b"access-control-allow-origin" for name, _ in exchange.extra_headers):
        return
    if origin.partition("://")[2] != exchange.header(b"host"):
        raise Forbidden("Pages of this origin may not call us; name it in server.origins.", code="origin_not_allowed")


def _not_allowed(exchange: Exchange) -> ClientFault:
    exchange.extra_headers.append((b"allow", b"POST"))
    return ClientFault("This revision of the protocol knows POST alone.", status=405, code="method_not_allowed")


def _not_acceptable() -> ClientFault:
    message = "The client must accept application/json and text/event-stream."
    return ClientFault(message, status=406, code="not_acceptable")
