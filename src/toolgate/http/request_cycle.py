"""One request and its response, as the ASGI application sees them.

Head and body are written together, an application that fails before its first byte is answered for, and a response that
is cut off is never ended as if it were whole.

It knows ASGI and the framing of a response. It must not know limits, clocks or how requests are read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from toolgate.conversation.errors import GatewayOverloaded, InternalGatewayError, ToolgateError
from toolgate.http.asgi_types import AsgiApp, Message, Scope
from toolgate.http.error_response import STATUS_LINES
from toolgate.http.flow_control import FlowControl
from toolgate.http.request_limits import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# The ASGI extension under which an application finds the response itself: a call costs less than an ASGI message.
RESPONSE = "toolgate.response"
# In the ASGI scope: the first header of each name, and for a request that came when all but the last connections were
# taken, how many connections callers share.
NAMED_HEADERS = "toolgate.named_headers"
SHARED_CONNECTIONS = "toolgate.shared_connections"

_UNREAD_BYTES = 64 * 1024  # of a body, beyond which the connection is not read
_WITHOUT_BODY = (204, 304)

_logger = logging.getLogger(__name__)


class RequestCycleConnection(Protocol):
    """The connection, as far as a response uses it."""

    transport: asyncio.Transport
    flow: FlowControl
    default_headers: Headers

    def response_complete(self, response: "RequestResponseCycle") -> None:
        """Note that the response is complete."""

    def send_error(self, error: ToolgateError, path: str | None) -> None:
        """Send an error in place of a response, and close."""


class RequestResponseCycle:
    """A running request; `started` once bytes of its response are sent, `complete` after the last of them.

    `admitted` is set by the application for a caller: without one, the connection is not kept while others need it.
    """

    __slots__ = (
        "_body",
        "_changed",
        "_chunked",
        "_event",
        "_expects_continue",
        "_flow",
        "_head",
        "_scope",
        "_unsent",
        "admitted",
        "cancelled_on_disconnect",
        "complete",
        "connection",
        "disconnected",
        "http_version",
        "keep_alive",
        "method",
        "more_body",
        "path",
        "started",
        "task",
    )

    def __init__(
        self, connection: RequestCycleConnection, scope: Scope, expects_continue: bool, keep_alive: bool
    ) -> None:
        self.connection = connection
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.http_version: str = scope["http_version"]
        self.keep_alive = keep_alive
        self.more_body = True
        self.admitted = False
        self.disconnected = self.started = self.complete = self.cancelled_on_disconnect = False
        self.task: asyncio.Task[None] | None = None
        self._flow = connection.flow
        self._scope = scope
        self._body: bytes | bytearray = b""  # most come in one piece
        self._expects_continue = expects_continue
        self._changed = self._chunked = False
        self._event: asyncio.Event | None = None
        self._head: bytes | None = None
        self._unsent: int | None = None  # bytes of the body, when its length was announced

    @property
    def chunked(self) -> bool:
        """Whether a chunk's size comes next on the wire."""
        return self.started and self._chunked

    def feed(self, body: bytes) -> None:
        """Add a piece of the request's body."""
        if self.complete:
            return
        if not self._body:
            self._body = body
        else:  # a bytearray, because joining bytes piece by piece would copy them each time
            self._body = self._body if type(self._body) is bytearray else bytearray(self._body)
            self._body += body
        if len(self._body) > _UNREAD_BYTES:
            self._flow.pause_reading()
        self._changed = True
        if self._event is not None:
            self._event.set()

    def feed_end(self) -> None:
        """Note that the request's body is complete."""
        self.more_body = False
        self._changed = True
        if self._event is not None:
            self._event.set()

    def disconnect(self) -> None:
        """Note that the client has left, and cancel the task if the application asked for it."""
        self.disconnected = True
        if self._event is not None:
            self._event.set()
        if self.cancelled_on_disconnect and not self.complete and self.task is not None:
            self.task.cancel()

    def cancel_on_disconnect(self) -> None:
        """Have the task cancelled when the client leaves before its response is complete.

        That is cheaper than a second task that waits for `receive`.
        """
        self.cancelled_on_disconnect = True
        if self.disconnected and self.task is not None:
            self.task.cancel()

    def close_after(self) -> None:
        """Close the connection after this response, if its head is not encoded yet."""
        # A client that was not sent `connection: close` may use the connection for one more request.
        if self._head is None and not self.started:
            self.keep_alive = False

    def call(self, app: AsgiApp) -> Awaitable[None]:
        """Call the application; it is to be awaited, and `end` called with what it raises."""
        scope, self._scope = self._scope, {}  # no cycle is left to the garbage collector
        scope["extensions"] = {RESPONSE: self}
        return app(scope, self.receive, self.send)

    def end(self, failure: BaseException | None) -> None:
        """Send an error if the application has failed, was cancelled, or has returned without a whole response."""
        if failure is None and (self.complete or self.disconnected):
            return
        if isinstance(failure, asyncio.CancelledError):
            self._fail(GatewayOverloaded("The server is shutting down.", retry_after=1))
            return
        if failure is not None:
            _logger.error("The application failed", exc_info=failure)
        else:
            _logger.error("The application returned before its response was complete")
        self._fail(InternalGatewayError("The server failed to answer."))

    def _fail(self, error: ToolgateError) -> None:
        if self.complete or self.disconnected:
            return
        self.cancelled_on_disconnect = False  # the task is at its end
        self.disconnect()  # whatever the application still sends is ignored
        if self.started:
            self.connection.transport.close()  # without a last chunk, so that it is not taken for whole
        else:
            self.connection.send_error(error, self.path)

    async def receive(self) -> Message:
        """Return the next piece of the body, or that the client has left."""
        # The client holds its body back until it is asked for, so that a refusal costs it nothing.
        if self._expects_continue and not self.disconnected:
            self._expects_continue = False
            self.connection.transport.write(CONTINUE)
        self._flow.resume_reading()
        while not (self._changed or self.disconnected or self.complete):
            if self._event is None:
                self._event = asyncio.Event()
            self._event.clear()
            await self._event.wait()
        self._changed = False
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), b""
        if not self.more_body:  # a large last piece has paused reading, and a disconnect would not be seen
            self._flow.resume_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def whole_body(self) -> bytes | None:
        """Return the request's body if it is complete; otherwise `receive` returns it piece by piece."""
        if self.more_body or self.disconnected:
            return None
        if self._flow.read_paused:
            self._flow.resume_reading()  # or a disconnect would not be seen
        body, self._body = bytes(self._body), b""
        return body

    async def send(self, message: Message) -> None:
        """Send a part of the response, after the client has read enough of what was sent before."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.complete:
            raise RuntimeError("The response is already complete.")
        if message["type"] == "http.response.body":
            self._write(message.get("body", b""), message.get("more_body", False))
        elif message["type"] == "http.response.start" and self._head is None and not self.started:
            self._head = self._encode_head(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"The application sent {message['type']!r} out of order.")

    @property
    def must_wait(self) -> bool:
        """Whether the client has yet to read what was sent before."""
        return self._flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        """Wait until the client has read enough of what was sent before."""
        await self._flow.drain()

    def respond(self, status: int, content_type: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response at once, which is cheaper than head and body; `headers` must not be about framing."""
        if self.disconnected:
            return
        if self.started or self._head is not None:
            raise RuntimeError("The response was already started.")
        lines = [STATUS_LINES[status], b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))]
        for header in self.connection.default_headers:
            lines.append(b"%b: %b\r\n" % header)
        for header in headers:
            lines.append(b"%b: %b\r\n" % header)
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        head = _join_head(lines, len(lines) + 1 + (not self.keep_alive))
        self.started, self._expects_continue = True, False
        self.connection.transport.write(head if self.method == "HEAD" else head + body)
        self.finish()

    def _encode_head(self, status: int, headers: Any) -> bytes:
        """Return the head, which waits for the first piece of the body so that both are sent together."""
        with_body = self.method != "HEAD" and status not in _WITHOUT_BODY
        self._chunked = with_body and self.http_version == "1.1"
        lines = [STATUS_LINES[status]]
        for name, value in (*self.connection.default_headers, *headers):
            name = name.lower()
            if name == b"content-length":
                self._chunked = False
                self._unsent = int(value) if with_body else None
            elif name == b"connection":  # an application may close the connection, not keep it open
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            elif name == b"transfer-encoding":  # the framing is decided here
                continue
            lines.append(b"%s: %s\r\n" % (name, value))
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        return _join_head(lines, len(lines) + (not self.keep_alive))

    def _write(self, body: bytes, more_body: bool) -> None:
        if self._head is None and not self.started:
            raise RuntimeError("The application sent a body before the head.")
        if self._unsent is not None:
            self._unsent -= len(body)
            if self._unsent < 0 or (self._unsent and not more_body):
                raise RuntimeError("The body is not as long as its Content-Length says.")
        if self._chunked:  # an empty chunk would end the body
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                body += b"0\r\n\r\n"
        elif self.method == "HEAD":
            body = b""
        if self._head is not None:
            body = self._head + body
            self._head, self.started, self._expects_continue = None, True, False
        if not self.connection.transport.is_closing():  # reset by the client; `disconnect` follows
            self.connection.transport.write(body)
        if not more_body:
            self.finish()

    def finish(self) -> None:
        """Mark the response as complete."""
        self.complete = True
        if self._event is not None:
            self._event.set()
        self.connection.response_complete(self)


def _join_head(lines: list[bytes], count: int) -> bytes:
    """Join header lines, after checking that no value contains another line."""
    # Values may come from clients and upstreams: one with a line break could add headers, or a second response.
    head = b"".join(lines)
    if len(head.splitlines()) != count or 0 in head:  # splits at each \r and \n; half the time of counting both
        raise RuntimeError("A header of the response contains a line break.")
    return head
