"""Make the HTTP exchanges of tools with the server's own HTTP client.

Each exchange has a connection of its own, to an address that the egress policy has checked. The environment's proxies are
not used: a proxy would look up the name again and could reach private hosts.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from toolgate.conversation.errors import ToolgateError
from toolgate.tools.egress import (
    EgressBudget,
    EgressNoResponse,
    EgressPolicy,
    EgressQuota,
    EgressRefused,
    EgressRequest,
    EgressResponse,
    GuardedHttp,
)
from toolgate.tools.egress.guarded_http import OnHop, ignore_hop
from toolgate.tools.egress.name_lookup import NameLookup
from toolgate.tools.egress.url import ParsedEgressUrl, read_url
from toolgate.upstreams.transport import ResponseSizeLimits, UpstreamResponse, UpstreamTimeouts
from toolgate.upstreams.transport.address import parse_url
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.request_writer import RequestHeadWriter, head_start

CONNECT_SECONDS = 10.0


class _SingleUse:
    """Closes a connection after one exchange, where an upstream's pool would keep it."""

    def opened(self, connection: UpstreamHttpConnection) -> None: ...

    def free(self, connection: UpstreamHttpConnection) -> None:
        connection.close()

    def lost(self, connection: UpstreamHttpConnection) -> None: ...


class PinnedHttpTransport:
    """Makes exchanges over HTTP/1.1, each on a fresh connection to an address that was checked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """`tls` must verify; by default the system's certificates are trusted."""
        self._tls = tls

    async def carry(self, target: ParsedEgressUrl, addresses: Sequence[str], request: EgressRequest) -> EgressResponse:
        """Send to one of these addresses, and read the response up to its limit."""
        # The limit of a stream would be an error; a response that is too long is cut here instead.
        caps = ResponseSizeLimits(whole=request.max_bytes, stream=2**62)
        pieces: list[bytes] = []
        size = 0
        try:
            reply = await self.ask(target, addresses, request, caps)
            try:
                async for piece in reply:
                    pieces.append(piece)
                    size += len(piece)
                    if size > request.max_bytes:
                        break
            finally:
                await reply.aclose()
        except ToolgateError as failure:
            raise EgressNoResponse(f"no answer: {failure.message}") from None
        body = b"".join(pieces)[: request.max_bytes]
        return EgressResponse(target.url, reply.status, reply.headers, body, truncated=size > request.max_bytes)

    async def ask(
        self, target: ParsedEgressUrl, addresses: Sequence[str], request: EgressRequest, caps: ResponseSizeLimits
    ) -> UpstreamResponse:
        """Send a request and return the head of the response; Host and TLS have the target's name, not the address."""
        origin, rest = parse_url(target.url)
        try:
            start = head_start(origin, rest, None)
            head = RequestHeadWriter().head(request.method, start, request.headers, len(request.body))
        except ToolgateError as failure:
            raise EgressRefused(failure.message) from None
        timeouts = UpstreamTimeouts(CONNECT_SECONDS, request.seconds, request.seconds, request.seconds)
        loop = asyncio.get_running_loop()
        if origin.scheme == "https" and self._tls is None:
            # At the first use, because it takes a while to load the system's certificates.
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        tls = self._tls if origin.scheme == "https" else None

        def make() -> UpstreamHttpConnection:
            return UpstreamHttpConnection(loop, origin.name, _SingleUse())

        connection = await dial(origin, None, tls, CONNECT_SECONDS, make, addresses)
        incoming = connection.send(head, request.body, timeouts, loop.time() + request.seconds, caps.head)
        await incoming.arrival()
        if incoming.error is not None and not incoming.headed:
            raise incoming.error
        return UpstreamResponse(incoming, caps)


class GuardedStreamClient:
    """An HTTP client for streamed responses: one checked hop, no redirects, no time limit but for connecting."""

    def __init__(self, carrier: PinnedHttpTransport, policy: EgressPolicy) -> None:
        self._carrier = carrier
        self._policy = policy

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool = True
    ) -> UpstreamResponse:
        """Send a request and return the head of the response. Each has a connection of its own, so none is ever repeated."""
        target = read_url(url)
        request = EgressRequest(target.url, method, headers, body, seconds=inf)
        return await self._carrier.ask(target, await self._policy.addresses(target), request, ResponseSizeLimits())

    async def check(self, url: str) -> None:
        """Raise EgressRefused if a request to the URL would be refused."""
        await self._policy.addresses(read_url(url))


def guarded_http(
    allow: Iterable[str] = (),
    budget: EgressBudget | None = None,
    on_hop: OnHop = ignore_hop,
    tls: ssl.SSLContext | None = None,
) -> GuardedHttp:
    """Make the HTTP client of tools; `allow` names private hosts and networks that they may reach all the same."""
    return GuardedHttp(PinnedHttpTransport(tls), EgressPolicy(NameLookup(), allow), budget or EgressQuota(), on_hop)


def guarded_streams(
    allow: Iterable[str] = (), trusted: Iterable[str] = (), tls: ssl.SSLContext | None = None
) -> GuardedStreamClient:
    """Make a client for streams from public hosts, those that `allow` names, and those of the URLs in `trusted`."""
    hosts = [read_url(url).exact for url in trusted]
    return GuardedStreamClient(PinnedHttpTransport(tls), EgressPolicy(NameLookup(), (*allow, *hosts)))
