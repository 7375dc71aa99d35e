"""Find the server that a command calls if neither --url nor TOOLGATE_URL names one: that of the configuration here."""

import os
import socket
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8080"
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - how a client reaches them


def server_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on this address."""
    address = _ALL_ADDRESSES.get(host, host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def configured_url(path: Path) -> str:
    """Return the URL of the server that a configuration file starts; a file that names none has the default.

    The file may have come with a folder of a stranger: a key must not be sent to another machine because of it.
    """
    from toolgate.config.load import load_address  # with msgspec and YAML it takes long to load

    host, port = load_address(path, os.environ)
    # Port 0 means that the server takes a free one, which the file does not name.
    if not port:
        return DEFAULT_URL
    # Only an address of this machine can be bound.
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.bind((host, 0))
    except (OSError, UnicodeError):
        return DEFAULT_URL
    return server_url(host, port)
