"""How long and how much: the limits of one exchange with an upstream. Knows nothing else."""

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB


class Timeouts(Struct, frozen=True):
    """Seconds an upstream may take; infinity lifts a limit."""

    connect: float = 4.0  # name, TCP, proxy and TLS together
    first_byte: float = 120.0  # from the request to the first byte of the body; also the wait for a free connection
    idle: float = 60.0  # between two pieces of the body, while somebody waits for one
    total: float = 600.0  # everything, from the call to the end of the body


class Caps(Struct, frozen=True):
    """Bytes an upstream may send; what is compressed is counted before and after."""

    head: int = 64 * KIB  # status line and headers, interim answers included; also framing that carries no content
    whole: int = 32 * MIB  # a body that is read at once
    stream: int = 256 * MIB  # a body that is read piece by piece


def size(count: int) -> str:
    """Write a number of bytes as a person would."""
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / KIB:g} KiB"
