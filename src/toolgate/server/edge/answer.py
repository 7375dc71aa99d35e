"""One request and its answer, as ASGI sees them.

Takes the place of uvicorn's `RequestResponseCycle` to write head and body in one go, to say why when the application
failed before its first byte, and to stay quiet when a request is ended by a shutdown.

It knows ASGI and the framing of a response.  It must not know limits, clocks or how requests are read.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from toolgate.conversation.errors import GatewayFault, Overloaded, ToolgateError

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = "toolgate.answer"
"""The ASGI extension under which an application finds the answer itself: calling it costs less than sending messages."""

_WITHOUT_BODY = (204, 304)


class Edge(Protocol):
    """What an answer needs of the connection that it goes out on."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: ServerState
    logger: logging.Logger

    def answered(self, answer: "Answer") -> None:
        """Take note that the answer is complete."""

    def fail(self, error: ToolgateError, path: str | None) -> None:
        """Send a refusal instead of an answer and close."""


class Answer:
    """A running request; `started` once bytes of its answer are on the wire, `complete` after the last of them."""

    __slots__ = (
        "_body",
        "_chunked",
        "_edge",
        "_event",
        "_flow",
        "_head",
        "_left",
        "_news",
        "_scope",
        "_waits",
        "cancelled_by_departure",
        "complete",
        "disconnected",
        "http_version",
        "keep_alive",
        "method",
        "more_body",
        "path",
        "started",
        "task",
    )

    def __init__(self, edge: Edge, scope: HTTPScope, waits: bool, keep_alive: bool) -> None:
        self.method = scope["method"]
        self.path = scope["path"]
        self.http_version = scope["http_version"]
        self.keep_alive = keep_alive
        self.more_body = True
        self.disconnected = self.started = self.complete = self.cancelled_by_departure = False
        self.task: asyncio.Task[None] | None = None
        self._edge = edge
        self._flow = edge.flow
        self._scope = scope
        self._body: bytes | bytearray = b""  # most come in one piece
        self._waits = waits
        self._news = self._chunked = False
        self._event: asyncio.Event | None = None
        self._head: bytes | None = None
        self._left: int | None = None  # of the body, when its length was announced

    @property
    def edge(self) -> Edge:
        """The connection that the answer goes out on."""
        return self._edge

    @property
    def chunked(self) -> bool:
        """Whether the body is on its way in chunks, so that a chunk's size comes next."""
        return self.started and self._chunked

    def feed(self, body: bytes) -> None:
        """Add a piece of the request's body."""
        if self.complete:
            return
        if not self._body:
            self._body = body
        else:
            self._body = self._body if type(self._body) is bytearray else bytearray(self._body)
            self._body += body
        if len(self._body) > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._tell()

    def feed_end(self) -> None:
        """Mark the request's body as whole."""
        self.more_body = False
        self._tell()

    def disconnect(self) -> None:
        """Tell the application that nobody listens any more; if it wants that, by cancelling its task."""
        self.disconnected = True
        self._tell()
        if self.cancelled_by_departure and not self.complete and self.task is not None:
            self.task.cancel()

    def cancel_on_departure(self) -> None:
        """Have the task cancelled when the client leaves before its answer is complete; cheaper than one that waits."""
        self.cancelled_by_departure = True
        if self.disconnected and self.task is not None:
            self.task.cancel()

    def be_last(self) -> None:
        """Let the connection end with this answer, if the head can still say so: a client must not ask in vain."""
        if self._head is None and not self.started:
            self.keep_alive = False

    def _tell(self) -> None:
        self._news = True
        if self._event is not None:
            self._event.set()

    async def run(self, app: ASGI3Application) -> None:
        """Let the application answer, and see to it that something is said when it does not."""
        scope, self._scope = self._scope, {}  # type: ignore[typeddict-item]  # no cycle is left to the garbage collector
        scope["extensions"] = {ANSWER: self}  # type: ignore[dict-item]  # an extension of ours
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._end(Overloaded("The server is shutting down.", retry_after=1))
            raise
        except Exception as failure:
            self._edge.logger.error("The application failed", exc_info=failure)
            self._end(GatewayFault("The server failed to answer."))
        else:
            if not self.complete and not self.disconnected:
                self._edge.logger.error("The application returned before its answer was complete")
                self._end(GatewayFault("The server failed to answer."))

    def _end(self, error: ToolgateError) -> None:
        if self.complete or self.disconnected:
            return
        self.cancelled_by_departure = False  # the task is at its end
        self.disconnect()
        if self.started:
            self._edge.transport.close()  # without an end, so that nobody takes it for whole
        else:
            self._edge.fail(error, self.path)

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next piece of the body, or that the client left."""
        if self._waits and not self.disconnected:
            self._waits = False
            self._edge.transport.write(CONTINUE)
        self._flow.resume_reading()
        while not (self._news or self.disconnected or self.complete):
            if self._event is None:
                self._event = asyncio.Event()
            self._event.clear()
            await self._event.wait()
        self._news = False
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def whole_body(self) -> bytes | None:
        """Return the request's body if all of it is here; otherwise `receive` has it piece by piece."""
        if self.more_body or self.disconnected:
            return None
        if self._flow.read_paused:
            self._flow.resume_reading()  # or the client's departure would not be seen
        body, self._body = bytes(self._body), b""
        return body

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer, after the client has taken what was sent before."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.complete:
            raise RuntimeError("The answer is already complete.")
        if message["type"] == "http.response.body":
            self._write(message.get("body", b""), message.get("more_body", False))
        elif message["type"] == "http.response.start" and self._head is None and not self.started:
            self._head = self._encode_head(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"An answer has no place for {message['type']!r} here.")

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to take what was sent before."""
        return self._flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        """Wait until the client has taken what was sent before."""
        await self._flow.drain()

    def respond(self, status: int, content_type: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer at once, which is cheaper than its two halves; `headers` must not speak of framing."""
        if self.disconnected:
            return
        if self.started or self._head is not None:
            raise RuntimeError("An answer has one head.")
        lines = [STATUS_LINE[status], b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))]
        for header in self._edge.server_state.default_headers:
            lines.append(b"%b: %b\r\n" % header)
        for header in headers:
            lines.append(b"%b: %b\r\n" % header)
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        head = _joined(lines, len(lines) + 1 + (not self.keep_alive))
        self.started, self._waits = True, False
        self._edge.transport.write(head if self.method == "HEAD" else head + body)
        self.finish()

    def _encode_head(self, status: int, headers: Any) -> bytes:
        """Return the head, which waits for the first piece of the body so that both go out together."""
        with_body = self.method != "HEAD" and status not in _WITHOUT_BODY
        self._chunked = with_body and self.http_version == "1.1"
        lines = [STATUS_LINE[status]]
        for name, value in (*self._edge.server_state.default_headers, *headers):
            name = name.lower()
            if name == b"content-length":
                self._chunked = False
                self._left = int(value) if with_body else None
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            elif name == b"transfer-encoding":
                continue
            lines.append(b"%s: %s\r\n" % (name, value))
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        return _joined(lines, len(lines) + (not self.keep_alive))

    def _write(self, body: bytes, more_body: bool) -> None:
        if self._head is None and not self.started:
            raise RuntimeError("An answer starts with its head.")
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more_body):
                raise RuntimeError("The body is not as long as its Content-Length says.")
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                body += b"0\r\n\r\n"
        elif self.method == "HEAD":
            body = b""
        if self._head is not None:
            body = self._head + body
            self._head, self.started, self._waits = None, True, False
        if not self._edge.transport.is_closing():  # reset by the client, of which `disconnect` will tell
            self._edge.transport.write(body)
        if not more_body:
            self.finish()

    def finish(self) -> None:
        """Mark the answer as complete."""
        self.complete = True
        self._tell()
        self._edge.answered(self)


def _joined(lines: list[bytes], count: int) -> bytes:
    """Join header lines, having made sure that none of them smuggles in another."""
    head = b"".join(lines)
    if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
        raise RuntimeError("A header of the answer holds a line break.")
    return head
