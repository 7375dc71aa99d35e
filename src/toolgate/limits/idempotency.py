"""Execute a request with an `Idempotency-Key` once, and replay its response byte for byte when it is sent again.

Wraps handlers. The first request with a key claims it and is executed, and its response is stored before its end is sent;
requests with the same key wait for that. An error is not stored, nor a response whose client left in the middle: then the
next request with the key is executed.
The response is encrypted under a secret derived from the key and the request, which is not stored.
Knows exchanges and the store; it must not know dialects, models or tools.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Conflict, GatewayOverloaded, InvalidRequest
from toolgate.conversation.random_ids import random_suffix
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.application import AdmittedHttpRequest, Handler, HttpRoute
from toolgate.http.exchange import JSON, Header, HttpExchange
from toolgate.storage.idempotency import (
    IdempotencyClaimGranted,
    IdempotencyClaimMismatch,
    IdempotencyClaimPending,
    IdempotencyStore,
    StoredIdempotentAnswer,
)
from toolgate.storage.row_encryption import derive_secret
from toolgate.telemetry.request_log import RequestRecord

HEADER = b"idempotency-key"
REPLAYED: Header = (b"idempotent-replayed", b"true")
_PURPOSE = "answer of an idempotent request"
# 1 to 255 printable characters of ASCII, without a blank at either end, which HTTP parsers strip.
_KEY = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")


class IdempotencyPollingLimits(Struct, frozen=True):
    """The largest response that is stored, and for how long and how often a second request polls, in seconds."""

    body_bytes: int = 8 * 1024 * 1024
    wait: float = 60.0
    poll: float = 0.25


class _Claim(Struct, frozen=True):
    """A claimed key, and the secret under which its response is encrypted."""

    owner: str
    key: str
    holder: str
    secret: bytes


class Idempotency:
    """Executes each request with a key once."""

    def __init__(
        self,
        store: IdempotencyStore,
        options: IdempotencyPollingLimits = IdempotencyPollingLimits(),  # noqa: B008  # an immutable value
        name: Callable[[], str] = random_suffix,
    ) -> None:
        """`name` returns a unique holder for each claim."""
        self._store = store
        self._options = options
        self._name = name
        self._running: dict[tuple[str, str], asyncio.Event] = {}  # set when the request of this node has ended

    def wrap(self, endpoints: Sequence[HttpRoute]) -> list[HttpRoute]:
        """Return the endpoints; those that change or cost something take an Idempotency-Key."""
        suitable = [one.method == "POST" and one.scope is not None and one.path != "/mcp" for one in endpoints]
        return [self._wrap(one) if takes else one for one, takes in zip(endpoints, suitable, strict=True)]

    def _wrap(self, endpoint: HttpRoute) -> HttpRoute:
        handler = endpoint.handler

        # Not async: almost every request comes without a key, and would pay for one more coroutine.
        def handle(call: AdmittedHttpRequest) -> Awaitable[None]:
            key = call.exchange.named.get(HEADER)
            return handler(call) if key is None else self._handle_once(call, handler, key)

        # The OpenAPI document shows it as the summary of the endpoint.
        handle.__doc__ = handler.__doc__
        return replace(endpoint, handler=handle)

    async def _handle_once(self, call: AdmittedHttpRequest, handler: Handler, key: bytes) -> None:
        if not _KEY.fullmatch(key):
            raise InvalidRequest(
                "An Idempotency-Key has 1 to 255 characters of ASCII.",
                param="Idempotency-Key",
                code="invalid_idempotency_key",
            )
        body = await call.exchange.body()
        start = b"\0".join((call.exchange.path.encode(), call.exchange.query.encode(), b""))

        def digests() -> tuple[bytes, bytes]:
            # Only the same request derives this secret again, so the stored response cannot be read from the database alone.
            request = start + body
            return derive_secret(_PURPOSE, key + b"\0" + request), hashlib.sha256(request).digest()

        secret, digest = digests() if len(body) <= LARGE_BODY else await run_in_thread(digests)
        claim = _Claim(call.caller.name, key.decode("ascii"), self._name(), secret)
        stored = await self._claim(claim, digest, call.exchange)
        if stored is None:
            await self._execute(call, handler, claim, body)
            return
        if stored.body is None:
            raise Conflict(
                "The first request with this Idempotency-Key was answered, but its answer was too large to be stored.",
                code="idempotency_not_replayable",
            )
        (_, content_type), *headers = stored.headers
        if not stored.streamed:
            await call.exchange.respond(stored.status, stored.body, [*headers, REPLAYED], content_type)
            return
        await call.exchange.start(content_type, [*headers, REPLAYED])
        await call.exchange.write(stored.body)
        await call.exchange.end()

    async def _claim(self, claim: _Claim, digest: bytes, exchange: HttpExchange) -> StoredIdempotentAnswer | None:
        """Claim the key, and return None; or return the stored response of an earlier request."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.wait
        while True:
            match await self._store.claim(claim.owner, claim.key, digest, claim.holder, claim.secret):
                case IdempotencyClaimGranted():
                    return None
                case IdempotencyClaimMismatch():
                    # 400: an editor shows 422 as a filtered answer, and SDKs send a request again after 409.
                    raise InvalidRequest(
                        "This Idempotency-Key was used for another request; take a new key for a new request.",
                        param="Idempotency-Key",
                        code="idempotency_key_reused",
                    )
                case StoredIdempotentAnswer() as stored:
                    return stored
                case IdempotencyClaimPending() if loop.time() >= until:
                    raise Conflict(
                        "The first request with this Idempotency-Key is still running.",
                        code="idempotency_in_progress",
                        retry_after=5,
                    )
                case IdempotencyClaimPending():
                    # A request whose client has left must not be executed when the key is free.
                    exchange.cancel_when_client_leaves()
                    # The end of a request that runs here is notified; for one on another node the database is polled.
                    running = self._running.get((claim.owner, claim.key))
                    seconds = min(until - loop.time(), self._store.lease if running else self._options.poll)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await (running or asyncio.Event()).wait()

    async def _execute(self, call: AdmittedHttpRequest, handler: Handler, claim: _Claim, body: bytes) -> None:
        recording = _RecordingExchange(call.exchange, body, call.record, self._store, claim, self._options.body_bytes)
        at = (claim.owner, claim.key)
        done = self._running[at] = asyncio.Event()
        renewing = asyncio.get_running_loop().create_task(self._renew(claim))
        try:
            await handler(replace(call, exchange=recording))
        finally:
            renewing.cancel()
            try:
                if not recording.stored:  # shielded: a cancelled request must not hold its key until the lease ends
                    await asyncio.shield(self._release(claim))
            finally:
                # After a lost lease, another request of this node may hold the key by now, with an event of its own.
                if self._running.get(at) is done:
                    del self._running[at]
                done.set()

    async def _release(self, claim: _Claim) -> None:
        with suppress(GatewayOverloaded):  # the claim expires anyway
            await self._store.release(claim.owner, claim.key, claim.holder)

    async def _renew(self, claim: _Claim) -> None:
        """Renew the claim until it is lost."""
        is_ours = True
        while is_ours:
            await asyncio.sleep(self._store.lease / 3)  # so that one renewal may fail before the lease ends
            try:
                is_ours = await self._store.renew(claim.owner, claim.key, claim.holder)
            except GatewayOverloaded:  # there is time for another attempt
                continue


class _RecordingExchange(HttpExchange):
    """An exchange that stores the response it sends; handlers take exchanges by their class, so it is one."""

    __slots__ = ("_body", "_claim", "_head", "_most", "_outer", "_pieces", "_record", "_size", "_store", "stored")

    def __init__(
        self, outer: HttpExchange, body: bytes, record: RequestRecord, store: IdempotencyStore, claim: _Claim, most: int
    ) -> None:
        super().__init__(outer._scope, outer._receive, outer._send)
        self.received = outer.received
        self._outer = outer
        self._body = body
        self._record = record
        self._store = store
        self._claim = claim
        self._most = most
        self._pieces: list[bytes] = []
        self._size = 0
        self._head: list[Header] = []
        self.stored = False

    def _whole_body(self) -> bytes:
        return self._body

    async def respond(
        self, status: int, body: bytes, headers: Iterable[Header] = (), content_type: bytes = JSON
    ) -> None:
        """Store and send the whole response."""
        self.started = True
        sent = [*self.extra_headers, *headers]
        # Stored before it is sent, so that a repetition never runs again what a client has seen the result of. After an
        # error of the server the same request may be tried again.
        if status < 500:
            stored = body if len(body) <= self._most else None
            await self._save(StoredIdempotentAnswer(status, [(b"content-type", content_type), *sent], stored))
        await self._outer.respond(status, body, sent, content_type)

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Start a streamed response."""
        self.started = True
        self._head = [*self.extra_headers, *headers]
        await self._outer.start(content_type, self._head)
        self._head = [(b"content-type", content_type), *self._head]  # in the order in which a replay reads them

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed response."""
        self._size += len(chunk)
        # Of a response that is too large nothing is kept; the fact that there was one is still stored (`end`).
        if self._size <= self._most:
            self._pieces.append(chunk)
        elif self._pieces:
            self._pieces = []
        await self._outer.write(chunk)

    def idle_for(self) -> float:
        """Return the seconds since the last piece was sent."""
        return self._outer.idle_for()

    async def end(self) -> None:
        """Store and end the streamed response; one that ended in an error is not stored."""
        if self._record.error is None:
            body = b"".join(self._pieces) if self._size <= self._most else None
            await self._save(StoredIdempotentAnswer(200, self._head, body, streamed=True))
        await self._outer.end()

    async def _save(self, answer: StoredIdempotentAnswer) -> None:
        claim = self._claim
        try:
            await self._store.keep(claim.owner, claim.key, claim.holder, answer, claim.secret)
        except GatewayOverloaded:  # a response that cannot be stored is better than none
            return
        self.stored = True
