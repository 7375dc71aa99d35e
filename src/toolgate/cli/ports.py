"""Whether an address can be listened on, found out before the server is loaded."""

import errno
import socket


def complaint(host: str, port: int) -> str | None:
    """Why we cannot listen there, in words for a person; None if we can, or if only trying for real will tell."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        return f"{host} is not an address of this machine; choose another with --host."
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen(1)
        except OSError as error:
            return _reason(error, host, port)
    return None


def _reason(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is already in use; choose another with --port, or stop what uses it."
        case errno.EACCES:
            return f"Port {port} needs more rights than this process has; choose one above 1023 with --port."
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; choose another with --host."
        case _:
            return f"Cannot listen on {host} port {port}: {error.strerror}."
