"""stdio: a message a line on stdin, a message a line on stdout.

There is one client and it is trusted as whoever started it. It knows lines and when they end; it must not know what
methods mean.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.ids import mint
from toolgate.server.callers.auth import Caller
from toolgate.server.mcp import envelope, jsonrpc
from toolgate.server.mcp.changes import Changes
from toolgate.server.mcp.door import Door
from toolgate.server.mcp.jsonrpc import Notification, Request, RpcError
from toolgate.server.mcp.outbox import Outbox
from toolgate.server.mcp.peer import Peer
from toolgate.server.mcp.revisions import has_batches
from toolgate.server.mcp.service import Crashed, Service
from toolgate.wire.jsontext import decode_body, encode

LOCAL = Caller("stdio", frozenset(("tools",)))
"""Whoever started us: there is nobody else on the line."""

LONGEST_LINE = 16 * 1024 * 1024
LAST_WORDS = 1.0
"""Seconds that running calls have to finish once the client says no more."""

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Stdio:
    """One conversation over a pair of pipes."""

    def __init__(self, door: Door, write: Write, crashed: Crashed, caller: Caller = LOCAL) -> None:
        self._changes = Changes(door.subscribe)
        self._service = Service(door, self._changes)
        self._write = write
        self._crashed = crashed
        self._peer = Peer(caller, session=mint())
        self._outbox = Outbox()
        self._running: set[asyncio.Task[None]] = set()
        self._introduced = False

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the client closes its end, or ours."""
        writing = asyncio.ensure_future(self._send())
        reading = asyncio.ensure_future(self._receive(reader))
        patience = 0.0
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            patience = LAST_WORDS
        finally:
            reading.cancel()
            await self._finish(patience)
            self._outbox.close()
            await asyncio.wait({reading, writing}, timeout=LAST_WORDS)
            writing.cancel()
        for ended in (reading, writing):
            if ended.done() and not ended.cancelled():
                ended.result()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                self._refuse(RpcError(jsonrpc.INVALID_REQUEST, f"A line is longer than {LONGEST_LINE} bytes."))
                continue
            if not line:
                return
            if line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            value = decode_body(line)
            messages = [jsonrpc.read(one) for one in self._several(value)]
        except InvalidRequest as error:
            self._refuse(RpcError(jsonrpc.PARSE_ERROR, error.message))
        except RpcError as refusal:
            self._refuse(refusal)
        else:
            for message in messages:
                self._begin(message)

    def _several(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            return [value]
        if not value or not has_batches(self._peer.revision):
            raise RpcError(jsonrpc.INVALID_REQUEST, "This revision of the protocol knows no batches.")
        return value

    def _begin(self, message: jsonrpc.Message) -> None:
        if isinstance(message, Request):
            self._start(self._reply(message))
        elif isinstance(message, Notification) and message.method == "notifications/cancelled":
            self._peer.cancel(message.params.get("requestId"))

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reply(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            speaker = self._speaker(request)
            self._peer.begin(request, task.cancel)
        except RpcError as refusal:
            self._refuse(refusal)
            return
        try:
            response = await self._service.reply(request, speaker, self._outbox.notify, self._crashed)
            self._outbox.respond(response)
        finally:
            self._peer.end(request)
        if request.method == "initialize" and "result" in response and not self._introduced:
            self._introduced = True
            self._start(self._service.tell_changes(self._outbox.notify))

    def _speaker(self, request: Request) -> Peer:
        """The client as this request shows it: both eras may be spoken on one line."""
        if not envelope.is_modern(request, None):
            return self._peer
        opened = envelope.read(request)
        return Peer(self._peer.caller, opened.revision, opened.level)

    def _refuse(self, refusal: RpcError) -> None:
        self._outbox.respond(jsonrpc.error(refusal.id, refusal.code, refusal.message, refusal.data))

    async def _send(self) -> None:
        while True:
            for message in self._outbox.take():
                await self._write(encode(message) + b"\n")
            if self._outbox.closed:
                return
            await self._outbox.wait()

    async def _finish(self, patience: float) -> None:
        """What was asked before the client fell silent is still answered, if that does not take long."""
        self._changes.close()
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=patience)
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running))
