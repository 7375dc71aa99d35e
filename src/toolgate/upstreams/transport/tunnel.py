"""Open a tunnel through a proxy to a TLS upstream: CONNECT, then TLS inside."""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from typing import cast

from toolgate.upstreams.transport.address import Proxy, UpstreamOrigin
from toolgate.upstreams.transport.connection import UpstreamHttpConnection

# A proxy that sends more than this without the end of its head is refused.
_ANSWER_CAP = 16 * 1024
# Such as `HTTP/1.1 200 Connection established`, a line end, headers, and an empty line at the very end.
_ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r].*?\r\n\r\n", re.DOTALL)


class ProxyRefused(ConnectionError):
    """The proxy refused the tunnel."""


class _Opening(asyncio.Protocol):
    """Sends CONNECT to the proxy; `opened` is done when the proxy has connected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self.opened.done() or (b"\r\n\r\n" not in self._answer and len(self._answer) < _ANSWER_CAP):
            return
        # Bytes after the head would come from the proxy and be taken for the upstream's.
        answer = _ANSWER.fullmatch(self._answer)
        if answer is not None and answer[1].startswith(b"2"):
            self.opened.set_result(None)
        else:
            self.opened.set_exception(ProxyRefused())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ProxyRefused())


async def open_tunnel(
    sock: socket.socket,
    origin: UpstreamOrigin,
    proxy: Proxy,
    tls: ssl.SSLContext,
    make: Callable[[], UpstreamHttpConnection],
) -> UpstreamHttpConnection:
    """Have the proxy connect to the origin, and start TLS with the origin itself."""
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {origin.name} HTTP/1.1", f"host: {origin.name}"]
    if proxy.authorization is not None:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    transport, opening = await loop.create_connection(lambda: _Opening(loop, head), sock=sock)
    try:
        await opening.opened
        connection = make()
        secured = await loop.start_tls(transport, connection, tls, server_hostname=origin.host)
    except BaseException:
        transport.abort()
        raise
    if secured is None:  # the connection was lost as the handshake ended
        raise ProxyRefused
    connection.connection_made(secured)  # start_tls does not call it
    return connection
