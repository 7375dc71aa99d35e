"""Serve MCP over stdio: one message per line on stdin and stdout.

There is one client, trusted like the user who started the process. Knows lines and when they end; must not know what
methods mean.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from toolgate.auth.authenticator import Caller
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.conversation.random_ids import random_suffix
from toolgate.mcp.protocol.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcRequestRefused,
    RpcResultResponse,
    parse_message,
)
from toolgate.mcp.protocol.revisions import CANCELLED, has_batches
from toolgate.mcp.server.client_state import McpClientState
from toolgate.mcp.server.methods import McpMethods, OnCrash
from toolgate.mcp.server.outbox import McpOutbox
from toolgate.mcp.server.request_meta import is_stateless, read_meta
from toolgate.mcp.server.tool_catalog_protocol import ToolCatalog
from toolgate.mcp.server.tool_update_listeners import ToolUpdateListeners
from toolgate.wire.jsontext import decode_body

# The user who started the process.
LOCAL = Caller("stdio", frozenset(("tools",)))

MAX_LINE_BYTES = 16 * 1024 * 1024
# For running calls to finish once the client has closed its end: `echo '…' | toolgate mcp` expects an answer.
GRACE_SECONDS = 1.0

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class StdioServerSession:
    """One client on a pair of pipes."""

    def __init__(self, catalog: ToolCatalog, write: Write, on_crash: OnCrash, caller: Caller = LOCAL) -> None:
        self._catalog = catalog
        self._updates = ToolUpdateListeners(catalog.subscribe)
        self._methods = McpMethods(catalog, self._updates)
        self._write = write
        self._on_crash = on_crash
        self._client = McpClientState(caller, session=random_suffix())
        self._outbox = McpOutbox()
        self._running: set[asyncio.Task[None]] = set()
        self._initialized = False

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the client closes one of the pipes."""
        sending = asyncio.ensure_future(self._send())
        receiving = asyncio.ensure_future(self._receive(reader))
        grace = 0.0
        try:
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            grace = GRACE_SECONDS
        finally:
            receiving.cancel()
            self._updates.close()
            # Running calls may finish first, unless this task itself is cancelled: then `grace` is still 0.
            if self._running:
                await asyncio.wait(tuple(self._running), timeout=grace)
            if self._running and grace:  # a request may wait for the first list of a tool source
                await asyncio.wait([asyncio.ensure_future(self._catalog.settled())])
            if self._running:
                await asyncio.wait(tuple(self._running), timeout=grace)
            for task in tuple(self._running):
                task.cancel()
            if self._running:
                await asyncio.wait(tuple(self._running))
            self._outbox.close()  # only now: the calls that finished have put their responses
            await asyncio.wait({receiving, sending}, timeout=GRACE_SECONDS)
            sending.cancel()
        for task in (receiving, sending):
            if task.done() and not task.cancelled():
                task.result()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # the reader has dropped what it had of the line
                message = f"A line is longer than {MAX_LINE_BYTES} bytes."
                self._outbox.respond(RpcErrorResponse(None, INVALID_REQUEST, message))
                continue
            if not line:
                return
            if line.strip():
                self._handle_line(line)

    def _handle_line(self, line: bytes) -> None:
        try:
            value = decode_body(line, max_depth=MAX_DEPTH)
            if isinstance(value, list) and not (value and has_batches(self._client.revision)):
                raise RpcRequestRefused(INVALID_REQUEST, "This revision of the protocol knows no batches.")
            messages = [parse_message(one) for one in (value if isinstance(value, list) else [value])]
        except InvalidRequest as error:
            self._outbox.respond(RpcErrorResponse(None, PARSE_ERROR, error.message))
            return
        except RpcRequestRefused as error:
            self._outbox.respond(error.response())
            return
        for message in messages:
            if isinstance(message, RpcRequest):
                self._start(self._reply(message))
            elif isinstance(message, RpcNotification) and message.method == CANCELLED:
                self._client.cancel(message.params.get("requestId"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reply(self, request: RpcRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            client = self._client
            if is_stateless(request, None):  # one client may mix requests with and without handshake
                meta = read_meta(request)
                client = McpClientState(self._client.caller, meta.revision, meta.level)
            self._client.begin(request, task.cancel)
        except RpcRequestRefused as error:
            self._outbox.respond(error.response())
            return
        try:
            response = await self._methods.reply(request, client, self._outbox.notify, self._on_crash)
            self._outbox.respond(response)
        finally:
            self._client.end(request)
        if request.method == "initialize" and isinstance(response, RpcResultResponse) and not self._initialized:
            self._initialized = True
            self._start(self._methods.notify_changes(self._outbox.notify))

    async def _send(self) -> None:
        while True:
            for message in self._outbox.take():
                await self._write(message.encode() + b"\n")
            if self._outbox.closed:
                return
            await self._outbox.wait()
