"""The listening socket: bound once, with options that every accepted connection inherits and that cost nothing later."""

import socket

BACKLOG = 2048
_SEND_BUFFER = 128 * 1024  # in the kernel; without a bound it grows to megabytes for every client that does not read


def bind(host: str, port: int, stall_seconds: float, *, shared: bool = False) -> socket.socket:
    """A socket that listens; OSError if the address cannot be had.  A `shared` address may be bound again by us."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio forgets it, uvloop does not
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel's own write-stall timeout also sees bytes that have left our buffers for its own.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_seconds * 1000))
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket, host: str) -> str:
    """Where clients find it."""
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
