"""Open connections: name lookup, TCP, proxy, TLS. Errors name host and port alone."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from errno import errorcode
from itertools import chain, zip_longest
from typing import Any

from toolgate.conversation.errors import UpstreamUnreachable
from toolgate.upstreams.transport.address import Proxy, UpstreamOrigin
from toolgate.upstreams.transport.connection import UpstreamHttpConnection
from toolgate.upstreams.transport.tunnel import open_tunnel

# RFC 8305 recommends this pause: a dead IPv6 route then costs a quarter of a second, and few hosts see two attempts.
NEXT_ADDRESS_AFTER = 0.25
Address = tuple[socket.AddressFamily, Any]  # what follows the family depends on it
# OpenSSL's codes for why a certificate was not accepted; its messages would quote the certificate.
_DISTRUST = {
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: "its issuer is self-signed and not trusted",
    20: "its issuer is not trusted",
    62: "it belongs to another host",
    64: "it belongs to another address",
}


async def dial(
    origin: UpstreamOrigin,
    proxy: Proxy | None,
    tls: ssl.SSLContext | None,
    limit: float,
    make: Callable[[], UpstreamHttpConnection],
    at: Sequence[str] = (),
) -> UpstreamHttpConnection:
    """Open a connection within `limit` seconds; a `tls` context means TLS, verified, or nothing.

    Addresses given in `at` are those to connect to, instead of whatever the origin's name stands for.
    """
    try:
        async with asyncio.timeout(limit if limit < float("inf") else None) as clock:
            return await _open(origin, proxy, tls, make, at)
    except OSError as failure:
        if clock.expired():
            fault = UpstreamUnreachable(  # no request was sent yet, so that it may be retried
                f"no connection to {origin.name} within {limit:g} s (limit: connect)",
                status=504,
                code="upstream_timeout",
            )
        else:
            fault = UpstreamUnreachable(_unreachable_message(origin, proxy, failure))
    # Raised outside of the handler, so that its __context__ is not the OpenSSL error with the certificate's text.
    try:
        raise fault
    finally:
        del fault  # it refers to this frame and those of the request, which a cycle would keep in memory


async def _open(
    origin: UpstreamOrigin,
    proxy: Proxy | None,
    tls: ssl.SSLContext | None,
    make: Callable[[], UpstreamHttpConnection],
    at: Sequence[str],
) -> UpstreamHttpConnection:
    loop = asyncio.get_running_loop()
    through = origin if proxy is None else proxy
    host, port = through.host, through.port
    if at:
        six = socket.AF_INET6
        addresses = _alternate((six, (one, port, 0, 0)) if ":" in one else (socket.AF_INET, (one, port)) for one in at)
    else:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:  # a name: asking a name server blocks, so asyncio does it in a thread
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = _alternate((family, address) for family, _, _, _, address in found)
    sock = await (_connect_to(loop, addresses[0]) if len(addresses) == 1 else _race(loop, addresses))
    if proxy is not None and tls is not None:
        return await open_tunnel(sock, origin, proxy, tls, make)
    hostname = origin.host if tls is not None else None
    _, connection = await loop.create_connection(make, sock=sock, ssl=tls, server_hostname=hostname)
    return connection


def _alternate(found: Iterable[Address]) -> list[Address]:
    """Alternate between the two address families, the resolver's first choice first."""
    addresses = list(dict.fromkeys(found))
    first = [address for address in addresses if address[0] == addresses[0][0]]
    second = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, second)) if address is not None]


async def _connect_to(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    family, place = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Without it the end of a request would wait for the acknowledgement of its beginning.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


async def _race(loop: asyncio.AbstractEventLoop, addresses: list[Address]) -> socket.socket:
    """Try the next address when the last one failed or takes too long; the first to connect is used (RFC 8305)."""
    # Written here because uvloop's create_connection tries one address after the other.
    waiting = deque(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException | None = None
    winner: socket.socket | None = None
    try:
        while winner is None and (waiting or running):
            if waiting:
                running.add(loop.create_task(_connect_to(loop, waiting.popleft())))
            patience = NEXT_ADDRESS_AFTER if waiting else None
            await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in [one for one in running if one.done()]:
                if task.exception() is not None:
                    failure = task.exception()
                    running.discard(task)
                elif winner is None:  # a second one that connected stays in `running` and is closed below
                    winner = task.result()
                    running.discard(task)
    finally:
        for task in running:
            if task.done():  # it connected at the same moment as the winner, or as a cancellation
                _close_socket(task)
            else:
                task.add_done_callback(_close_socket)
                task.cancel()
    if winner is None:
        raise failure or OSError("no address")
    return winner


def _close_socket(connecting: "asyncio.Task[socket.socket]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _unreachable_message(origin: UpstreamOrigin, proxy: Proxy | None, failure: OSError) -> str:
    place = origin.name if proxy is None else f"the proxy on the way to {origin.name}"
    match failure:
        case socket.gaierror():
            return f"the name of {place} does not resolve"
        case ConnectionRefusedError():
            return f"{place} refused the connection"
        case ssl.SSLCertVerificationError():
            reason = _DISTRUST.get(failure.verify_code, "it cannot be verified")
            return f"the TLS certificate of {origin.name} is not accepted: {reason}"
        case ssl.SSLError():
            return f"the TLS handshake with {origin.name} failed"
    return f"{place} could not be reached ({errorcode.get(failure.errno or 0, 'connection lost')})"
