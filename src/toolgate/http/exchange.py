"""One HTTP request and its response over bare ASGI: read the body, respond, stream, notice that the client left.

There is no framework between the socket and the handlers: routing and middleware would cost more than the translation.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from toolgate.conversation.errors import InvalidRequest, WrongMediaType
from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.asgi_types import Receive, Scope, Send
from toolgate.http.request_cycle import NAMED_HEADERS, RESPONSE, SHARED_CONNECTIONS, RequestResponseCycle
from toolgate.wire.decoded_list_cache import DecodedListCache
from toolgate.wire.jsontext import decode_body

Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
# Content types that programs send when their user names none, such as `curl -d`: JSON is read under them, too.
# A web page can post a form anywhere without a preflight, so they are rejected if a browser's headers are present.
_UNSPECIFIED = frozenset(("application/x-www-form-urlencoded", "application/octet-stream"))
_BROWSER = frozenset((b"origin", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site", b"sec-fetch-user"))


class ClientLeft(Exception):
    """The client closed its connection before the response was complete."""


class HttpExchange:
    """One running request and its response."""

    __slots__ = (
        "_peeked",
        "_receive",
        "_scope",
        "_send",
        "_wrote_at",
        "extra_headers",
        "headers",
        "method",
        "named",
        "path",
        "received",
        "response",
        "sent",
        "shared_connections",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[Header] = scope["headers"]
        # The first header of each name; the requests of a WebSocket, which come without a head, have none yet.
        self.named: Mapping[bytes, bytes] = scope.get(NAMED_HEADERS) or dict(reversed(self.headers))
        self.started = False
        self.received = self.sent = 0  # bytes of bodies
        self.extra_headers: list[Header] = []  # sent with every response
        # How many connections callers share, if this is one of the last connections, else 0.
        self.shared_connections: int = scope.get(SHARED_CONNECTIONS, 0)
        self._wrote_at = 0.0
        self._scope = scope
        self._receive = receive
        self._send = send
        self.response: RequestResponseCycle = scope["extensions"][RESPONSE]
        self._peeked: bytes | None = None

    @property
    def query(self) -> str:
        """The query string."""
        return str(self._scope["query_string"], "latin-1")

    @property
    def client_host(self) -> str:
        """The address of the client, or of the proxy before it; empty if it is not known."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    @property
    def server_address(self) -> tuple[str, int]:
        """The host and port that the connection has reached; empty and 0 if they are not known."""
        server = self._scope.get("server")
        return (str(server[0]), int(server[1] or 0)) if server else ("", 0)

    def extension(self, name: str) -> Any:
        """Return the ASGI extension of this name, None if there is none."""
        return self._scope["extensions"].get(name)

    def header(self, name: bytes) -> str | None:
        """Return the first header of this lower-case name."""
        value = self.named.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        """Return the whole body; its size is limited below ASGI."""
        # Most bodies are complete before their request runs, and cost no ASGI message.
        whole = self._whole_body()
        if whole is not None:
            return whole
        pieces: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft
            piece: bytes = message.get("body", b"")
            self.received += len(piece)
            if not message.get("more_body"):
                return b"".join([*pieces, piece]) if pieces else piece
            pieces.append(piece)

    async def peek(self) -> bytes:
        """Return the whole body, which can still be read after this."""
        self._peeked = await self.body()
        return self._peeked

    def _whole_body(self) -> bytes | None:
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        whole = self.response.whole_body()
        if whole is not None:
            self.received += len(whole)
        return whole

    async def json(self, tools: DecodedListCache | None = None) -> Any:
        """Return the decoded JSON body, with tools that are cached; WrongMediaType if its content type is another."""
        content_type = self.named.get(b"content-type", JSON)
        if content_type != JSON and not _is_json(kind := content_type.decode("latin-1")):
            sent_by_a_page = not _BROWSER.isdisjoint(self.named)
            if sent_by_a_page or kind.lower() not in _UNSPECIFIED:
                raise WrongMediaType(f"The content type must be application/json in UTF-8, not {kind[:80]!r}.")
        body = self._whole_body() or await self.body()
        if not body:
            raise InvalidRequest("The body is empty: a JSON object was expected.", code="invalid_json")
        if len(body) <= LARGE_BODY:
            return decode_body(body, self._warn_of_surrogates, tools, MAX_DEPTH)
        return await run_in_thread(decode_body, body, self._warn_of_surrogates, max_depth=MAX_DEPTH)

    def _warn_of_surrogates(self) -> None:
        self.extra_headers.append((b"x-toolgate-warning", b"halves of surrogate pairs were replaced by U+FFFD"))

    async def optional_json(self) -> Any:
        """Return the decoded JSON body; an empty object if there is no body."""
        return await self.json() if await self.peek() else {}

    @property
    def client_left(self) -> bool:
        """Whether the client has closed its connection."""
        return self.response.disconnected

    def cancel(self) -> None:
        """Cancel the task that runs the request."""
        if self.response.task is not None:
            self.response.task.cancel()

    def cancel_when_client_leaves(self) -> None:
        """Have the running task cancelled when the client closes its connection before the response is complete."""
        self.response.cancel_on_disconnect()

    async def respond(
        self, status: int, body: bytes, headers: Iterable[Header] = (), content_type: bytes = JSON
    ) -> None:
        """Send the whole response."""
        response = self.response
        self.started = True
        self.sent = len(body)
        if response.must_wait:
            await response.drain()
        response.respond(status, content_type, [*self.extra_headers, *headers], body)

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Start a streamed response, with headers that keep proxies from buffering it."""
        self.started = True
        # `x-accel-buffering` is nginx's own: it would hold the stream back until a buffer is full.
        streaming = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*streaming, *self.extra_headers, *headers]}
        )

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed response; waits while the client has not read enough."""
        self._wrote_at = time.monotonic()
        self.sent += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def idle_for(self) -> float:
        """Return the seconds since the last piece was sent."""
        return time.monotonic() - self._wrote_at

    async def end(self) -> None:
        """End the streamed response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.lower().partition(";")
    if kind.strip() != "application/json" and not kind.strip().endswith("+json"):
        return False
    charset = parameters.partition("charset=")[2].partition(";")[0].strip().strip('"')
    return charset in ("", "utf-8", "utf8", "us-ascii")
