"""Requests out of bytes, each bounded in every direction before it is handed on.

No I/O and no clock: whoever owns the connection feeds it, is called when a head is complete, and gets a refusal raised.
Bytes are counted per read, not per byte; the parser's own callbacks are where a request's few facts are gathered.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import httptools

from toolgate.conversation.errors import GatewayFault, InvalidRequest, ToolgateError
from toolgate.server.edge.head import (
    Headers,
    Limits,
    body_too_large,
    head_too_large,
    size_of,
    terms,
    too_many_headers,
    url_too_long,
)

IDLE, HEAD, BODY = range(3)
"""What is being read: a message passes all three and is back where it began."""


class Body(Protocol):
    """What takes a request's body."""

    def feed(self, body: bytes) -> None:
        """Take a piece."""

    def feed_end(self) -> None:
        """Take note that there is no more."""


Begin = Callable[[str, bool, bool], Body]
"""Called when a head is complete, with the version, whether the client waits for "100 Continue" and whether it goes on."""


class RequestReader:
    """Reads one connection's requests, one after the other; `url` and `headers` are those of the one being read."""

    __slots__ = (
        "_barren_bytes",
        "_begin",
        "_body",
        "_body_bytes",
        "_body_limit",
        "_done",
        "_head_bytes",
        "_limits",
        "_on_wish",
        "_parser",
        "headers",
        "phase",
        "url",
    )

    def __init__(self, limits: Limits, begin: Begin, on_wish: Callable[[], None]) -> None:
        """`on_wish` is called after `begin` when the request could as well be answered by speaking WebSocket."""
        self.phase = IDLE
        self.url = b""
        self.headers: Headers = []
        self._limits = limits
        self._begin = begin
        self._on_wish = on_wish
        self._body: Body | None = None
        self._head_bytes = self._body_bytes = self._barren_bytes = self._body_limit = self._done = 0
        self._parser = self._new_parser()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is ignored, not an error
        return parser

    @property
    def method(self) -> bytes:
        """The method of the request whose head was just completed."""
        return self._parser.get_method()

    def feed(self, data: bytes | memoryview) -> None:
        """Read on, or raise what is wrong; `data` must be no larger than a head may be."""
        before, done, body_bytes = self.phase, self._done, self._body_bytes
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])
        except httptools.HttpParserError as broken:
            raise _why(broken) from None
        else:
            if before == BODY == self.phase:
                self._count_barren(len(data), self._body_bytes != body_bytes)
            elif self.phase == HEAD or done == self._done:
                self._count_head(len(data), before, done == self._done)
        if rest is not None:
            self._upgrade(rest)

    def _count_head(self, size: int, before: int, alone: bool) -> None:
        """Count a head that is not complete, but its first read only if nothing else was in it."""
        if before == HEAD or self.phase == IDLE:
            self._head_bytes += size
        else:
            self._head_bytes = size if before == IDLE and alone else 0
        if self._head_bytes > self._limits.head_bytes:
            raise head_too_large(self._limits.head_bytes)
        if self.phase == HEAD and len(self.headers) > self._limits.headers:
            raise too_many_headers(self._limits.headers)

    def _count_barren(self, size: int, progress: bool) -> None:
        """Bound what is neither head nor body: chunk extensions, and trailers, which the parser would collect."""
        self._barren_bytes = 0 if progress else self._barren_bytes + size
        if self._barren_bytes > self._limits.head_bytes:
            raise head_too_large(self._limits.head_bytes)

    def on_message_begin(self) -> None:
        """Start a request of which nothing is known yet."""
        self.phase = HEAD
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Collect the target, up to its limit."""
        self.url = url = self.url + url if self.url else url
        if len(url) > self._limits.url_bytes:
            raise url_too_long(self._limits.url_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the request once it is clear where it ends and that it is not too large."""
        parser, limits = self._parser, self._limits
        upgrade = parser.should_upgrade()
        if upgrade and self.method == b"CONNECT":
            raise InvalidRequest("CONNECT is not served here.", status=405, code="method_not_allowed")
        if len(self.headers) > limits.headers:
            raise too_many_headers(limits.headers)
        if self._head_bytes and size_of(self.url, self.headers) > limits.head_bytes:
            raise head_too_large(limits.head_bytes)
        version = parser.get_http_version()
        self._body_limit, waits = terms(version, self.url, self.headers, limits)
        if upgrade:
            return
        self._body_bytes = self._barren_bytes = 0
        # Whether a body follows a final answer that came before "100 Continue" is the client's choice: then close.
        goes_on = version == "1.1" and parser.should_keep_alive() and not waits
        self._body = self._begin(version, waits, goes_on)
        self.phase = BODY
        self.headers = []  # trailers come here, not into the request that is already running

    def on_body(self, body: bytes) -> None:
        """Pass a piece on unless it is one too many."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            raise body_too_large(self._body_limit)
        if self._body is not None:
            self._body.feed(body)

    def on_message_complete(self) -> None:
        """End the request, unless its body is yet to come in a second reading."""
        if self.phase != BODY or self._body is None:
            return
        self.phase = IDLE
        self._head_bytes = 0
        self._done += 1
        self._body.feed_end()
        self._body = None

    def _upgrade(self, rest: bytes) -> None:
        """Read the same request again without its wish for an upgrade, which a server may ignore.

        The parser skips the body of any request that has such a wish, and would read it as the next request.
        """
        head, wished = self._head_without_upgrade(), self._wishes_websocket()
        self._parser = self._new_parser()
        self.phase = IDLE
        self.feed(head)
        if wished:
            self._on_wish()
        if rest:
            self.feed(rest)

    def _wishes_websocket(self) -> bool:
        named = dict(self.headers)
        return (
            self.method == b"GET"
            and self._parser.get_http_version() == "1.1"
            and named.get(b"upgrade", b"").strip().lower() == b"websocket"
            and b"content-length" not in named
            and b"transfer-encoding" not in named
        )

    def _head_without_upgrade(self) -> bytes:
        parser, gone = self._parser, (b"upgrade", b"connection", b"http2-settings")
        kept = [header for header in self.headers if header[0] not in gone]
        if not parser.should_keep_alive():
            kept.append((b"connection", b"close"))
        line = b"%s %s HTTP/%s\r\n" % (parser.get_method(), self.url, parser.get_http_version().encode())
        return line + b"".join(b"%s: %s\r\n" % header for header in kept) + b"\r\n"


def _why(broken: httptools.HttpParserError) -> ToolgateError:
    cause = broken.__context__
    if isinstance(cause, ToolgateError):
        return cause
    if cause is not None and not isinstance(cause, httptools.HttpParserError | UnicodeError):
        logging.getLogger(__name__).error("A request could not be read", exc_info=cause)
        return GatewayFault("The server failed to read the request.")
    return InvalidRequest(f"Malformed HTTP request: {broken}.", code="malformed_request")
