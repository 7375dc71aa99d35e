"""Where the guard of the tools meets our own HTTP client: a name is asked for here, a connection opened there.

Each exchange has a connection of its own, to an address that the guard has checked. The environment's proxies are not
used: a proxy would resolve the name again, and reach what we may not.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from socket import SOCK_STREAM

from toolgate.conversation.errors import ToolgateError
from toolgate.tools.egress import Allowance, Budget, GuardedHttp, HttpAnswer, HttpRequest, Policy, Refused, Unanswered
from toolgate.tools.egress.guarded import Watch, unwatched
from toolgate.tools.egress.url import Target, read_url
from toolgate.upstreams.transport import Caps, Reply, Timeouts
from toolgate.upstreams.transport.address import Origin, parse_url
from toolgate.upstreams.transport.connection import Connection
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.request import Composer, head_start

CONNECT_SECONDS = 10.0


class _Keeper:
    """Keeps a connection for one exchange."""

    def opened(self, connection: Connection) -> None:
        """The exchange is about to begin."""

    def free(self, connection: Connection) -> None:
        """The exchange is over, and so is the connection."""
        connection.close()

    def lost(self, connection: Connection) -> None:
        """There is nothing to clear away."""


class DirectCarrier:
    """Makes exchanges over HTTP/1.1, each on a fresh connection."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """`tls` must verify; by default the system's certificates are trusted."""
        self._tls = tls

    async def carry(self, target: Target, addresses: Sequence[str], request: HttpRequest) -> HttpAnswer:
        """Send to one of these addresses, and read the answer up to its cap."""
        caps = Caps(whole=request.max_bytes, stream=2**62)
        try:
            reply = await self.ask(target, addresses, request, caps)
            try:
                body, truncated = await _read(reply, request.max_bytes)
            finally:
                await reply.aclose()
        except ToolgateError as failure:
            raise Unanswered(f"no answer: {failure.message}") from None
        return HttpAnswer(target.url, reply.status, reply.headers, body, truncated)

    async def ask(self, target: Target, addresses: Sequence[str], request: HttpRequest, caps: Caps) -> Reply:
        """The head of the answer; the target's name is kept in Host and TLS, whatever the address."""
        origin, rest = parse_url(target.url)
        head = _head(origin, rest, request)
        timeouts = Timeouts(CONNECT_SECONDS, request.seconds, request.seconds, request.seconds)
        loop = asyncio.get_running_loop()
        tls = self._context() if origin.scheme == "https" else None

        def make() -> Connection:
            return Connection(loop, origin.name, _Keeper())

        connection = await dial(origin, None, tls, CONNECT_SECONDS, make, addresses)
        incoming = connection.send(head, request.body, timeouts, loop.time() + request.seconds, caps.head)
        await incoming.arrival()
        if incoming.error is not None and not incoming.headed:
            raise incoming.error
        return Reply(incoming, caps)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


class GuardedStreams:
    """The same guard for those who read an answer as it arrives: one hop, no redirect, no time limit but for connecting."""

    def __init__(self, carrier: DirectCarrier, policy: Policy) -> None:
        self._carrier = carrier
        self._policy = policy

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool = True) -> Reply:
        """The head of the answer. Every request has a connection of its own, so none ever leaves twice."""
        target = read_url(url)
        request = HttpRequest(target.url, method, headers, body, seconds=inf)
        return await self._carrier.ask(target, await self._policy.addresses(target), request, Caps())

    async def check(self, url: str) -> None:
        """Refused if a request to the URL would be."""
        await self._policy.addresses(read_url(url))


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for a host's addresses, in a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


def guarded_http(
    allow: Iterable[str] = (),
    budget: Budget | None = None,
    watch: Watch = unwatched,
    tls: ssl.SSLContext | None = None,
) -> GuardedHttp:
    """The network as tools see it; `allow` names private hosts and networks that they may open all the same."""
    return GuardedHttp(DirectCarrier(tls), Policy(resolve, allow), budget or Allowance(), watch)


def guarded_streams(
    allow: Iterable[str] = (), trusted: Iterable[str] = (), tls: ssl.SSLContext | None = None
) -> GuardedStreams:
    """Streams to public hosts, those that `allow` names, and those of the URLs in `trusted`."""
    hosts = [read_url(url).exact for url in trusted]
    return GuardedStreams(DirectCarrier(tls), Policy(resolve, (*allow, *hosts)))


def _head(origin: Origin, rest: str, request: HttpRequest) -> bytes:
    start = head_start(origin, rest, None)
    try:
        return Composer().head(request.method, start, request.headers, len(request.body))
    except ToolgateError as failure:
        raise Refused(failure.message) from None


async def _read(reply: Reply, limit: int) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    count = 0
    async for piece in reply:
        pieces.append(piece)
        count += len(piece)
        if count > limit:
            return b"".join(pieces)[:limit], True
    return b"".join(pieces), False
