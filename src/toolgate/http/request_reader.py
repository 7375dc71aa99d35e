"""Parse requests out of bytes, with a limit on everything that a client can send.

No I/O and no clock: the connection feeds bytes, is called when a head is complete, and gets errors raised.
Bytes are counted per read, not per byte.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import httptools

from toolgate.conversation.errors import InternalGatewayError, InvalidRequest, ToolgateError
from toolgate.http.request_limits import (
    Headers,
    RequestLimits,
    body_too_large,
    check_head,
    head_size,
    head_too_large,
    too_many_headers,
    url_too_long,
)

# What is being read; a request passes all three phases and ends where it began.
IDLE, HEAD, BODY = range(3)

_UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")


class RequestBodySink(Protocol):
    """Receives a request's body."""

    def feed(self, body: bytes) -> None:
        """Receive a piece."""

    def feed_end(self) -> None:
        """Note that the body is complete."""


# Called when a head is complete, with the HTTP version, whether the client waits for "100 Continue", and whether the
# connection is kept alive.
StartRequest = Callable[[str, bool, bool], RequestBodySink]


class RequestReader:
    """Reads a connection's requests, one after the other; `url` and `headers` are those of the one being read.

    `method`, and `named` with the first header of each name, are set when its head is complete.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_limit",
        "_complete",
        "_head_bytes",
        "_limits",
        "_on_upgrade_offer",
        "_parser",
        "_skipped_bytes",
        "_start",
        "headers",
        "method",
        "named",
        "phase",
        "url",
    )

    def __init__(self, limits: RequestLimits, start: StartRequest, on_upgrade_offer: Callable[[], None]) -> None:
        """`on_upgrade_offer` is called after `start` if the client offers to speak WebSocket instead."""
        self.phase = IDLE
        self.url = self.method = b""
        self.headers: Headers = []
        self.named: Mapping[bytes, bytes] = {}
        self._limits = limits
        self._start = start
        self._on_upgrade_offer = on_upgrade_offer
        self._body: RequestBodySink | None = None
        self._head_bytes = self._body_bytes = self._skipped_bytes = self._body_limit = self._complete = 0
        self._parser = self._new_parser()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows the last request is ignored
        return parser

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes, or raise what is wrong with them; `data` must not be larger than a head may be."""
        before, complete, body_bytes = self.phase, self._complete, self._body_bytes
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])  # the argument is where the head ends
        except httptools.HttpParserError as broken:
            raise _error_of(broken) from None
        else:
            if before == BODY == self.phase:
                # Chunk extensions and trailers are neither head nor body; the parser would collect trailers.
                self._skipped_bytes = 0 if self._body_bytes != body_bytes else self._skipped_bytes + len(data)
                if self._skipped_bytes > self._limits.head_bytes:
                    raise head_too_large(self._limits.head_bytes)
            elif self.phase == HEAD or complete == self._complete:
                self._count_head(len(data), before, complete == self._complete)
        if rest is not None:
            self._read_without_upgrade(rest)

    def _count_head(self, size: int, before: int, alone: bool) -> None:
        """Count the bytes of an incomplete head; those of its first read only if nothing else was in it."""
        if before == HEAD or self.phase == IDLE:
            self._head_bytes += size
        else:
            self._head_bytes = size if before == IDLE and alone else 0
        if self._head_bytes > self._limits.head_bytes:
            raise head_too_large(self._limits.head_bytes)
        if self.phase == HEAD and len(self.headers) > self._limits.headers:
            raise too_many_headers(self._limits.headers)

    def on_message_begin(self) -> None:
        """Start a request."""
        self.phase = HEAD
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Collect the request target, up to its limit."""
        self.url = url = self.url + url if self.url else url
        if len(url) > self._limits.url_bytes:
            raise url_too_long(self._limits.url_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Start the request after its head was checked."""
        parser, limits = self._parser, self._limits
        upgrade, self.method = parser.should_upgrade(), parser.get_method()
        if upgrade and self.method == b"CONNECT":
            raise InvalidRequest("CONNECT is not served here.", status=405, code="method_not_allowed")
        if len(self.headers) > limits.headers:
            raise too_many_headers(limits.headers)
        # A head that came in one read is bounded by the size of the read.
        if self._head_bytes and head_size(self.url, self.headers) > limits.head_bytes:
            raise head_too_large(limits.head_bytes)
        version = parser.get_http_version()
        self.named = named = dict(reversed(self.headers))
        self._body_limit, expects_continue = check_head(version, self.url, self.headers, named, limits)
        if upgrade:  # the parser stops here: `_read_without_upgrade` starts the request
            return
        self._body_bytes = self._skipped_bytes = 0
        # Whether a body follows a response that came before "100 Continue" is the client's choice: then close.
        keep_alive = version == "1.1" and parser.should_keep_alive() and not expects_continue
        self._body = self._start(version, expects_continue, keep_alive)
        self.phase = BODY
        self.headers = []  # trailers come here, not into the request that is already running

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body, up to its limit."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            raise body_too_large(self._body_limit)
        if self._body is not None:
            self._body.feed(body)

    def on_message_complete(self) -> None:
        """End the request, unless it is read again without its offer of an upgrade."""
        if self.phase != BODY or self._body is None:
            return
        self.phase = IDLE
        self._head_bytes = 0
        self._complete += 1
        self._body.feed_end()
        self._body = None

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Read the same request again without its offer of an upgrade, which a server may ignore.

        The parser skips the body of any request that offers one, and would read it as the next request.
        """
        parser, named = self._parser, dict(self.headers)
        method, version = parser.get_method(), parser.get_http_version()
        offers_websocket = (
            method == b"GET"
            and version == "1.1"
            and named.get(b"upgrade", b"").strip().lower() == b"websocket"
            and b"content-length" not in named
            and b"transfer-encoding" not in named
        )
        kept = [header for header in self.headers if header[0] not in _UPGRADE_HEADERS]
        if not parser.should_keep_alive():
            kept.append((b"connection", b"close"))
        head = b"%s %s HTTP/%s\r\n" % (method, self.url, version.encode())
        head += b"".join(b"%s: %s\r\n" % header for header in kept) + b"\r\n"
        self._parser = self._new_parser()
        self.phase = IDLE
        self.feed(head)
        if offers_websocket:
            self._on_upgrade_offer()
        if rest:
            self.feed(rest)


def _error_of(broken: httptools.HttpParserError) -> ToolgateError:
    # What a callback above raises comes out of the parser as the context of its own error.
    cause = broken.__context__
    if isinstance(cause, ToolgateError):
        return cause
    if cause is not None and not isinstance(cause, httptools.HttpParserError | UnicodeError):
        logging.getLogger(__name__).error("A request could not be read", exc_info=cause)
        return InternalGatewayError("The server failed to read the request.")
    return InvalidRequest(f"Malformed HTTP request: {broken}.", code="malformed_request")
