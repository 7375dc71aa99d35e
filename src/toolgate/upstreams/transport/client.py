"""Send HTTP/1.1 requests over pooled connections. Follows no redirect, and repeats nothing that may have run."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from toolgate.conversation.errors import InternalGatewayError, UpstreamTimeout
from toolgate.upstreams.transport.address import Proxies, UpstreamOrigin, parse_url
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.limits import ResponseSizeLimits, UpstreamTimeouts
from toolgate.upstreams.transport.pool import ConnectionPool
from toolgate.upstreams.transport.request_writer import RequestHeadWriter, head_start
from toolgate.upstreams.transport.response import UpstreamResponse
from toolgate.upstreams.transport.response_reader import StaleConnection

# URLs whose parsed form is kept.
_KNOWN_ROUTES = 1024
_DEFAULT_TIMEOUTS = UpstreamTimeouts()
_DEFAULT_CAPS = ResponseSizeLimits()


class _Route(Struct, frozen=True):
    """The pool of a URL, and the start of its request heads."""

    pool: ConnectionPool
    start: bytes


class UpstreamHttpClient:
    """Sends requests over pooled connections; one serves a whole process, on one event loop."""

    def __init__(
        self,
        *,
        ca: str | ssl.SSLContext | None = None,
        per_host: int = 1024,
        keepalive_seconds: float = 30.0,
        caps: ResponseSizeLimits = _DEFAULT_CAPS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet; `ca` is a file of trusted certificates or a ready context, by default the system's."""
        if isinstance(ca, ssl.SSLContext) and not (ca.check_hostname and ca.verify_mode is ssl.CERT_REQUIRED):
            raise InternalGatewayError("the TLS context for upstreams must verify certificates and host names")
        self._ca = ca
        self._per_host = per_host
        self._keepalive = keepalive_seconds
        self._caps = caps
        self._proxies = Proxies.of(os.environ if environment is None else environment)
        self._writer = RequestHeadWriter()
        self._routes: dict[str, _Route] = {}
        self._pools: dict[UpstreamOrigin, ConnectionPool] = {}

    async def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeouts: UpstreamTimeouts = _DEFAULT_TIMEOUTS,
        method: str = "POST",
    ) -> UpstreamResponse:
        """Send a request and return when status and headers have arrived; a redirect is a response like any other."""
        # Nearly every request goes to a URL that was used before: then neither URL nor proxy is parsed again.
        route = self._routes.get(url) or self._route(url)
        head = self._writer.head(method, route.start, headers, len(body))
        total_at = route.pool.now() + timeouts.total
        connection = route.pool.ready() or await _acquire(route.pool, timeouts, total_at, fresh=False)
        while True:
            reader = connection.send(head, body, timeouts, total_at, self._caps.head)
            await reader.arrival()
            if reader.headed or reader.error is None:
                return UpstreamResponse(reader, self._caps)
            if not isinstance(reader.error, StaleConnection):
                try:
                    raise reader.error
                finally:
                    del reader, connection  # the error refers to this frame: a cycle would keep the body in memory
            connection = await _acquire(route.pool, timeouts, total_at, fresh=True)  # a new one cannot be stale

    async def aclose(self) -> None:
        """Close every connection, also busy ones, and wait until the sockets are closed."""
        pools = tuple(self._pools.values())
        self._pools.clear()
        self._routes.clear()
        for pool in pools:
            await pool.aclose()

    def _route(self, url: str) -> _Route:
        origin, target = parse_url(url)
        proxy = self._proxies.towards(origin)
        if len(self._routes) >= _KNOWN_ROUTES:  # URLs may come from callers without end: start over
            self._routes.clear()
            self._pools = {origin: pool for origin, pool in self._pools.items() if pool.in_use}
        pool = self._pools.get(origin)
        if pool is None:
            tls = None
            if origin.scheme == "https":
                # Reading the system's certificates takes some ten milliseconds: that is done when TLS is first needed.
                if not isinstance(self._ca, ssl.SSLContext):
                    self._ca = ssl.create_default_context(cafile=self._ca)
                    self._ca.set_alpn_protocols(["http/1.1"])
                tls = self._ca
            open_one = partial(dial, origin, proxy, tls)
            pool = ConnectionPool(asyncio.get_running_loop(), origin.name, open_one, self._per_host, self._keepalive)
            self._pools[origin] = pool
        route = self._routes[url] = _Route(pool, head_start(origin, target, proxy))
        return route


async def _acquire(
    pool: ConnectionPool, timeouts: UpstreamTimeouts, total_at: float, *, fresh: bool
) -> UpstreamHttpConnection:
    try:
        async with asyncio.timeout_at(total_at if total_at < float("inf") else None):
            return await pool.acquire(timeouts, fresh=fresh)
    except TimeoutError:
        raise UpstreamTimeout(f"{pool.upstream} was not reached within {timeouts.total:g} s (limit: total)") from None
