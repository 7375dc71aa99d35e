"""Check whether an address can be listened on, before the server is loaded."""

import errno
import socket


def port_problem(host: str, port: int) -> str | None:
    """Return why the address cannot be listened on; None if it can, or if only the server will find out."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        return f"{host} is not an address of this machine; choose another with --host."
    with socket.socket(family, kind, protocol) as sock:
        # As the server does; without it a port counts as taken for a minute after its last connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            # With SO_REUSEADDR two sockets may be bound to one port, but only one of them can listen.
            sock.listen(1)
        except OSError as error:
            match error.errno:
                case errno.EADDRINUSE:
                    other = 'choose another with --port (`make run ARGS="--port 9000"`)'
                    return f"Port {port} on {host} is already in use; {other}, or stop what uses it."
                case errno.EACCES:
                    return f"Port {port} needs more rights than this process has; choose one above 1023 with --port."
                case errno.EADDRNOTAVAIL:
                    return f"{host} is not an address of this machine; choose another with --host."
                case _:
                    return f"Cannot listen on {host} port {port}: {error.strerror}."
    return None
