"""A WebSocket connection to a peer. Only this file and `sliced_connection.py` know the library for it.

The socket itself comes from the transport, like any other to an upstream, so that proxies, certificates and failures are
treated alike; redirects are not followed.
"""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from toolgate import __version__
from toolgate.conversation.errors import InternalGatewayError, UpstreamUnavailable
from toolgate.upstreams.stateful_chat.frames import ANOTHER_PROTOCOL, BAD_TOKEN
from toolgate.upstreams.transport.address import Proxies, UpstreamOrigin, parse_url
from toolgate.upstreams.transport.dial import dial
from toolgate.upstreams.transport.limits import size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

_PLAIN = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_CLOSE_SECONDS = 1.0
_TOO_BIG = 1009  # the close code of RFC 6455 with which the library ends a connection


class StatefulChatUrl(Struct, frozen=True):
    """The address of a peer, parsed."""

    url: str
    origin: UpstreamOrigin

    @classmethod
    def of(cls, url: str) -> "StatefulChatUrl":
        """Read `ws://…` or `wss://…`; `http` and `https` mean the same."""
        scheme, _, rest = url.partition("://")
        if scheme not in _PLAIN:
            raise InternalGatewayError("a peer's URL must begin with ws:// or wss://")
        origin, target = parse_url(f"{_PLAIN[scheme]}://{rest}")
        return cls(f"{'wss' if origin.scheme == 'https' else 'ws'}://{origin.authority}{target}", origin)


class StatefulChatConnectionLost(Exception):
    """The connection is lost; the text follows the peer's name in a sentence."""


class StatefulChatWebSocket:
    """An open connection that carries text."""

    def __init__(self, connection: "ClientConnection", most: int) -> None:
        self._connection = connection
        self._most = most

    async def send(self, text: str) -> None:
        """Write a frame, and wait while the peer does not read."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise StatefulChatConnectionLost(_how_it_closed(closed, self._most)) from None

    async def receive(self) -> str:
        """Return the next frame."""
        from websockets.exceptions import ConnectionClosed

        try:
            frame = await self._connection.recv()
        except ConnectionClosed as closed:
            raise StatefulChatConnectionLost(_how_it_closed(closed, self._most)) from None
        if not isinstance(frame, str):
            raise StatefulChatConnectionLost("sent a binary frame, which is not part of the protocol")
        return frame

    async def aclose(self, code: int = 1000) -> None:
        """Close with a handshake, within a second."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._connection.close(code)
        except TimeoutError:
            pass  # the peer does not read: the connection is aborted
        finally:
            self._connection.transport.abort()


async def open_websocket(
    address: StatefulChatUrl,
    headers: "Mapping[str, str]",
    limit: float,
    most: int,
    tls: "SSLContext | None" = None,
    proxies: Proxies | None = None,
) -> StatefulChatWebSocket:
    """Connect within `limit` seconds; frames longer than `most` bytes will end the connection."""
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.uri import parse_uri

    from toolgate.upstreams.stateful_chat.sliced_connection import SlicedClientConnection

    secure = address.origin.scheme == "https"
    protocol = ClientProtocol(parse_uri(address.url), max_size=most)

    def make() -> Any:  # what `dial` calls a connection: it needs nothing of it but asyncio's protocol
        # Its own pings are off: `StatefulChatConnection` sends frames of our protocol, which also the peer's program sees.
        return SlicedClientConnection(protocol, ping_interval=None, close_timeout=_CLOSE_SECONDS)

    context = None
    if secure:
        from ssl import create_default_context

        context = tls or create_default_context()
    proxy = proxies.towards(address.origin) if proxies is not None and secure else None
    connection = cast("ClientConnection", await dial(address.origin, proxy, context, limit, make))
    try:
        await connection.handshake(headers, f"toolgate/{__version__}")
    except BaseException as failure:
        connection.transport.abort()
        if isinstance(failure, InvalidStatus):
            name, status = address.origin.name, failure.response.status_code
            if status in (401, 403):
                raise UpstreamUnavailable(f"{name} refused our credentials ({status})", code="upstream_auth") from None
            raise UpstreamUnavailable(
                f"{name} answered with status {status} instead of a WebSocket", status=502
            ) from None
        if isinstance(failure, InvalidHandshake):
            raise UpstreamUnavailable(f"{address.origin.name} does not speak WebSocket at this path") from None
        raise
    return StatefulChatWebSocket(connection, most)


def _how_it_closed(closed: "ConnectionClosed", most: int) -> str:
    """Return how the connection ended, without any text of the peer."""
    # The library sends 1009 by itself for a frame that is too large; behind the peer's own close it only repeats a code.
    ours, theirs = closed.sent, closed.rcvd
    if ours is not None and ours.code == _TOO_BIG and not closed.rcvd_then_sent:
        return f"sent a frame larger than {size(most)}"
    if theirs is None:
        return "broke off the connection"
    if theirs.code == BAD_TOKEN:
        return "refused our credentials"
    if theirs.code == ANOTHER_PROTOCOL:
        return "speaks another version of the protocol"
    return f"closed the connection (code {theirs.code})"
