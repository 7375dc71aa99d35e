"""`Idempotency-Key`: a request that is sent again gets the first one's answer, byte for byte, and is not carried out again.

A wrapper around handlers. The first with a key claims it, is carried out, and its answer is kept before its end is told;
whoever comes with the same key meanwhile waits for that. A failure is not kept, nor an answer whose client left in the
middle: the next to come, or the next who waits, carries the request out.
Knows exchanges and the store; it must not know dialects, models or tools.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation import ids
from toolgate.conversation.errors import Conflict, InvalidRequest, Overloaded
from toolgate.server.app import Call, Endpoint, Handler
from toolgate.server.exchange import JSON, Exchange, Header
from toolgate.storage.idempotency import Another, Busy, Claimed, IdempotencyStore, KeptAnswer
from toolgate.telemetry.traced import RequestRecord

HEADER = b"idempotency-key"
REPLAYED: Header = (b"idempotent-replayed", b"true")
_KEY = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")


class Terms(Struct, frozen=True):
    """How large an answer may be to be kept, how long a second request waits, and how often it looks, in seconds."""

    body_bytes: int = 8 * 1024 * 1024
    wait: float = 60.0
    look: float = 0.25


class _Claim(Struct, frozen=True):
    """A claim that is ours."""

    owner: str
    key: str
    holder: str


class Idempotency:
    """Carries out each keyed request once."""

    def __init__(
        self,
        store: IdempotencyStore,
        terms: Terms = Terms(),  # noqa: B008  # an immutable value
        name: Callable[[], str] = ids.mint,
    ) -> None:
        """`name` gives each claim a holder that nobody else is."""
        self._store = store
        self._terms = terms
        self._name = name
        self._running: dict[tuple[str, str], asyncio.Event] = {}

    def around(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """The endpoints, with those that change or cost something made idempotent for whoever wants it."""
        fitting = [one.method == "POST" and one.scope is not None and one.path != "/mcp" for one in endpoints]
        return [self._around(one) if fits else one for one, fits in zip(endpoints, fitting, strict=True)]

    def _around(self, endpoint: Endpoint) -> Endpoint:
        handler = endpoint.handler

        def handle(call: Call) -> Awaitable[None]:
            given = call.exchange.named.get(HEADER)
            return handler(call) if given is None else self._once(call, handler, given)

        handle.__doc__ = handler.__doc__
        return replace(endpoint, handler=handle)

    async def _once(self, call: Call, handler: Handler, given: bytes) -> None:
        if not _KEY.fullmatch(given):
            raise InvalidRequest(
                "An Idempotency-Key has 1 to 255 characters of ASCII.",
                param="Idempotency-Key",
                code="invalid_idempotency_key",
            )
        body = await call.exchange.body()
        claim = _Claim(call.caller.name, given.decode("ascii"), self._name())
        kept = await self._claimed(claim, _digest(call.exchange, body), call.exchange)
        if kept is not None:
            await _replay(call.exchange, kept)
            return
        await self._carry_out(call, handler, claim, body)

    async def _claimed(self, claim: _Claim, digest: bytes, exchange: Exchange) -> KeptAnswer | None:
        """The answer that is there already; None once the claim is ours."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._terms.wait
        while True:
            match await self._store.claim(claim.owner, claim.key, digest, claim.holder):
                case Claimed():
                    return None
                case Another():
                    raise InvalidRequest(
                        "This Idempotency-Key was used for another request; take a new key for a new request.",
                        param="Idempotency-Key",
                        code="idempotency_key_reused",
                    )
                case KeptAnswer() as kept:
                    return kept
                case Busy() if loop.time() >= until:
                    raise Conflict(
                        "The first request with this Idempotency-Key is still under way.",
                        code="idempotency_in_progress",
                        retry_after=5,
                    )
                case Busy():
                    exchange.cancel_when_client_leaves()
                    await self._pause(claim, until - loop.time())

    async def _pause(self, claim: _Claim, left: float) -> None:
        """Until the one that is under way here is done; one on another node is looked for from time to time."""
        running = self._running.get((claim.owner, claim.key))
        try:
            async with asyncio.timeout(min(left, self._store.lease if running else self._terms.look)):
                await (running or asyncio.Event()).wait()
        except TimeoutError:
            pass

    async def _carry_out(self, call: Call, handler: Handler, claim: _Claim, body: bytes) -> None:
        recording = _Recording(call.exchange, body, call.record, self._store, claim, self._terms.body_bytes)
        place = (claim.owner, claim.key)
        done = self._running[place] = asyncio.Event()
        try:
            async with self._renewed(claim):
                await handler(replace(call, exchange=recording))
        finally:
            try:
                if not recording.kept:
                    await asyncio.shield(self._release(claim))
            finally:
                if self._running.get(place) is done:
                    del self._running[place]
                done.set()

    async def _release(self, claim: _Claim) -> None:
        try:
            await self._store.release(claim.owner, claim.key, claim.holder)
        except Overloaded:  # it runs out by itself
            return

    @asynccontextmanager
    async def _renewed(self, claim: _Claim) -> AsyncIterator[None]:
        renewing = asyncio.get_running_loop().create_task(self._renew(claim))
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self, claim: _Claim) -> None:
        held = True
        while held:
            await asyncio.sleep(self._store.lease / 3)
            try:
                held = await self._store.renew(claim.owner, claim.key, claim.holder)
            except Overloaded:  # there is time for another attempt
                continue


class _Recording(Exchange):
    """An exchange that writes down what it sends; handlers know exchanges by their class, so it is one."""

    __slots__ = ("_body", "_claim", "_head", "_most", "_outer", "_pieces", "_record", "_size", "_store", "kept")

    def __init__(
        self, outer: Exchange, body: bytes, record: RequestRecord, store: IdempotencyStore, claim: _Claim, most: int
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
        self.kept = False

    def _whole_body(self) -> bytes:
        return self._body

    async def respond(
        self, status: int, body: bytes, headers: Iterable[Header] = (), content_type: bytes = JSON
    ) -> None:
        """Answer in one piece."""
        self.started = True
        sent = [*self.extra_headers, *headers]
        if status < 500:
            kept = body if len(body) <= self._most else None
            await self._keep(KeptAnswer(status, [(b"content-type", content_type), *sent], kept))
        await self._outer.respond(status, body, sent, content_type)

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Begin a streamed answer."""
        self.started = True
        self._head = [*self.extra_headers, *headers]
        await self._outer.start(content_type, self._head)
        self._head = [(b"content-type", content_type), *self._head]

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed answer."""
        self._size += len(chunk)
        if self._size <= self._most:
            self._pieces.append(chunk)
        elif self._pieces:
            self._pieces = []
        await self._outer.write(chunk)

    def idle_for(self) -> float:
        """Seconds since the last piece was sent."""
        return self._outer.idle_for()

    async def end(self) -> None:
        """The streamed answer is complete; one that ended in a failure is not kept."""
        if self._record.error is None:
            body = b"".join(self._pieces) if self._size <= self._most else None
            await self._keep(KeptAnswer(200, self._head, body, streamed=True))
        await self._outer.end()

    async def _keep(self, answer: KeptAnswer) -> None:
        claim = self._claim
        try:
            await self._store.keep(claim.owner, claim.key, claim.holder, answer)
        except Overloaded:  # an answer that cannot be kept is better than none
            return
        self.kept = True


def _digest(exchange: Exchange, body: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((exchange.path.encode(), exchange.query.encode(), body))).digest()


async def _replay(exchange: Exchange, kept: KeptAnswer) -> None:
    if kept.body is None:
        raise Conflict(
            "The first request with this Idempotency-Key was answered, but its answer was too large to be kept.",
            code="idempotency_not_replayable",
        )
    (_, content_type), *headers = kept.headers
    if not kept.streamed:
        await exchange.respond(kept.status, kept.body, [*headers, REPLAYED], content_type)
        return
    await exchange.start(content_type, [*headers, REPLAYED])
    await exchange.write(kept.body)
    await exchange.end()
