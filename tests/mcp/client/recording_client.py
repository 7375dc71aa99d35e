"""An HTTP client for remote MCP servers: our own transport, with a fresh connection for each request."""

import asyncio
from collections.abc import Mapping
from math import inf

from toolgate.upstreams.transport import ResponseSizeLimits, UpstreamResponse, UpstreamTimeouts
from toolgate.upstreams.transport.address import parse_url
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.request_writer import RequestHeadWriter, head_start

PATIENCE = UpstreamTimeouts(connect=4.0, first_byte=inf, idle=inf, total=inf)


class SingleUse:
    """Closes a connection after one exchange."""

    def opened(self, connection: UpstreamHttpConnection) -> None:
        """The exchange is about to begin."""

    def free(self, connection: UpstreamHttpConnection) -> None:
        """The exchange is over, and so is the connection."""
        connection.close()

    def lost(self, connection: UpstreamHttpConnection) -> None:
        """There is nothing to clear away."""


class RecordingHttpClient:
    """Sends each request once and records it in `sent`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Mapping[str, str], bytes]] = []

    def last(self, method: str) -> Mapping[str, str]:
        """Return the headers of the last request of this JSON-RPC method."""
        return next(headers for _, _, headers, body in reversed(self.sent) if f'"{method}"'.encode() in body)

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool
    ) -> UpstreamResponse:
        """Send a request and wait for status and headers."""
        self.sent.append((method, url, headers, body))
        origin, target = parse_url(url)
        loop = asyncio.get_running_loop()
        connection = await dial(
            origin, None, None, PATIENCE.connect, lambda: UpstreamHttpConnection(loop, origin.name, SingleUse())
        )
        head = RequestHeadWriter().head(method, head_start(origin, target, None), headers, len(body))
        incoming = connection.send(head, body, PATIENCE, inf, ResponseSizeLimits().head)
        await incoming.arrival()
        if incoming.error is not None and not incoming.headed:
            raise incoming.error
        return UpstreamResponse(incoming, ResponseSizeLimits())
