"""One HTTP request and its response over bare ASGI: reading, answering, streaming, and noticing that the client left.

There is no framework between the socket and the handlers: routing and middleware would cost more than the translation.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from toolgate.conversation.errors import InvalidRequest, WrongMediaType
from toolgate.engine.offload import LARGE, off_loop
from toolgate.server.edge.answer import ANSWER, Answer
from toolgate.wire.jsontext import decode_body

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
_UNSPECIFIED = frozenset(("application/x-www-form-urlencoded", "application/octet-stream"))
"""Content types that programs send when their user names none, such as `curl -d`: JSON is read under them, too.

A web page can post a form anywhere without a preflight, so they are refused when a browser's headers are there.
"""
_BROWSER = frozenset((b"origin", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site", b"sec-fetch-user"))


class ClientLeft(Exception):
    """The client closed its connection before the answer was complete."""


class Exchange:
    """One request being answered."""

    __slots__ = (
        "_answer",
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
        "sent",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[Header] = scope["headers"]
        self.named = dict(reversed(self.headers))  # the first of each name
        self.started = False
        self.received = self.sent = 0  # bytes of bodies
        self.extra_headers: list[Header] = []  # sent with every answer
        self._wrote_at = 0.0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._answer: Answer = scope["extensions"][ANSWER]
        self._peeked: bytes | None = None

    @property
    def query(self) -> str:
        """What stands behind the question mark."""
        return str(self._scope["query_string"], "latin-1")

    @property
    def answer(self) -> Answer:
        """What the answer goes out on."""
        return self._answer

    def extension(self, name: str) -> Any:
        """What whoever passed the request on has added to it under this name."""
        return self._scope["extensions"].get(name)

    def header(self, name: bytes) -> str | None:
        """The first header of this lower-case name."""
        value = self.named.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        """The whole body; its size is limited below ASGI."""
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
        """The whole body, which stays where it is for whoever reads it."""
        self._peeked = await self.body()
        return self._peeked

    def _whole_body(self) -> bytes | None:
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        whole = self._answer.whole_body()
        if whole is not None:
            self.received += len(whole)
        return whole

    async def json(self) -> Any:
        """The body as JSON, refused if it claims to be anything else."""
        content_type = self.named.get(b"content-type", JSON)
        if content_type != JSON and not _is_json(kind := content_type.decode("latin-1")):
            sent_by_a_page = not _BROWSER.isdisjoint(self.named)
            if sent_by_a_page or kind.lower() not in _UNSPECIFIED:
                raise WrongMediaType(f"The content type must be application/json in UTF-8, not {kind[:80]!r}.")
        body = self._whole_body() or await self.body()
        if not body:
            raise InvalidRequest("The body is empty: a JSON object was expected.", code="invalid_json")
        if len(body) <= LARGE:
            return decode_body(body, self._warn_of_halves)
        return await off_loop(decode_body, body, self._warn_of_halves)

    def _warn_of_halves(self) -> None:
        self.extra_headers.append((b"x-toolgate-warning", b"halves of surrogate pairs were replaced by U+FFFD"))

    async def optional_json(self) -> Any:
        """The body as JSON; an empty object where none was sent, because nothing particular is wanted."""
        return await self.json() if await self.peek() else {}

    @property
    def client_left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._answer.disconnected

    def cancel(self) -> None:
        """End the task that answers; whoever notices says why."""
        if self._answer.task is not None:
            self._answer.task.cancel()

    def cancel_when_client_leaves(self) -> None:
        """From now on the running task is cancelled when the client closes its connection before it is answered."""
        self._answer.cancel_on_departure()

    async def respond(
        self, status: int, body: bytes, headers: Iterable[Header] = (), content_type: bytes = JSON
    ) -> None:
        """Answer in one piece."""
        answer = self._answer
        self.started = True
        self.sent = len(body)
        if answer.must_wait:
            await answer.drain()
        answer.respond(status, content_type, [*self.extra_headers, *headers], body)

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Begin a streamed answer; proxies are told not to hold it back."""
        self.started = True
        streaming = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*streaming, *self.extra_headers, *headers]}
        )

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed answer; waits while the client is slower than we are."""
        self._wrote_at = time.monotonic()
        self.sent += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def idle_for(self) -> float:
        """Seconds since the last piece was sent."""
        return time.monotonic() - self._wrote_at

    async def end(self) -> None:
        """The streamed answer is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.lower().partition(";")
    if kind.strip() != "application/json" and not kind.strip().endswith("+json"):
        return False
    charset = parameters.partition("charset=")[2].partition(";")[0].strip().strip('"')
    return charset in ("", "utf-8", "utf8", "us-ascii")
