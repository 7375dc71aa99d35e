"""Bind listening sockets, with options that every accepted connection inherits."""

import socket

BACKLOG = 2048  # connections that wait to be accepted: many clients may come back at once
_SEND_BUFFER = 128 * 1024  # in the kernel; without a bound it grows to megabytes for every client that does not read

_MAX_MILLISECONDS = 2**31 - 1  # of an option of a socket: 24 days


def bind(host: str, port: int, stall_seconds: float, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; OSError if the address is not available. A `shared` address can be bound again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop sets it on its own, asyncio does not
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel's own write-stall timeout also sees bytes that have left our buffers for its own.
        milliseconds = min(max(1, int(stall_seconds * 1000)), _MAX_MILLISECONDS)  # 0 would be without a limit
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket, host: str) -> str:
    """Return the base URL of a listening socket."""
    return base_url(host, listening.getsockname()[1])


def base_url(host: str, port: int) -> str:
    """Return the base URL of a server at this address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
