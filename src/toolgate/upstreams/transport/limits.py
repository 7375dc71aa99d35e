"""Limit the time and size of one exchange with an upstream."""

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB


class UpstreamTimeouts(Struct, frozen=True):
    """Seconds an upstream may take; infinity lifts a limit."""

    connect: float = 4.0  # name, TCP, proxy and TLS together
    first_byte: float = 120.0  # from the request to the first byte of the body; also the wait for a free connection
    idle: float = 60.0  # between two pieces of the body, while the caller waits for one
    total: float = 600.0  # everything, from the call to the end of the body


class ResponseSizeLimits(Struct, frozen=True):
    """Bytes an upstream may send; what is compressed is counted before and after."""

    head: int = 64 * KIB  # status line and headers, interim answers included; also framing that carries no content
    whole: int = 16 * MIB  # a body that is read at once; its decoding keeps the interpreter for up to 50 ms
    stream: int = 256 * MIB  # a body that is read piece by piece


def size(count: int) -> str:
    """Format a number of bytes for people."""
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / KIB:g} KiB"
