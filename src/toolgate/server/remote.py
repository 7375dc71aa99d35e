"""The HTTP by which MCP servers are reached: answers as streams, each request once, to addresses that the policy allows.

Every request has a connection of its own, so that none can leave twice over one that proved dead, and it goes to an
address that was checked, so that a name cannot mean something else a moment later.
"""

import asyncio
import ssl
from collections.abc import Mapping
from math import inf

from toolgate.tools.egress.policy import Policy
from toolgate.tools.egress.url import read_url
from toolgate.upstreams.transport import Caps, Reply, Timeouts
from toolgate.upstreams.transport.address import parse_url
from toolgate.upstreams.transport.connection import Connection
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.request import Composer, head_start

_PATIENCE = Timeouts(connect=10.0, first_byte=inf, idle=inf, total=inf)


class RemoteHttp:
    """Sends requests of MCP clients."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tls: ssl.SSLContext | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool) -> Reply:
        """Status and headers of the answer."""
        origin, target = parse_url(url)
        addresses = await self._policy.addresses(read_url(url))
        loop = asyncio.get_running_loop()
        tls = self._context() if origin.scheme == "https" else None
        head = Composer().head(method, head_start(origin, target, None), headers, len(body))

        def make() -> Connection:
            return Connection(loop, origin.name, _ForOneExchange())

        connection = await dial(origin, None, tls, _PATIENCE.connect, make, addresses)
        incoming = connection.send(head, body, _PATIENCE, inf, Caps().head)
        await incoming.arrival()
        if incoming.error is not None and not incoming.headed:
            raise incoming.error
        return Reply(incoming, Caps())

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


class _ForOneExchange:
    """Keeps a connection for one exchange."""

    def opened(self, connection: Connection) -> None:
        """The exchange is about to begin."""

    def free(self, connection: Connection) -> None:
        """The exchange is over, and so is the connection."""
        connection.close()

    def lost(self, connection: Connection) -> None:
        """There is nothing to clear away."""
