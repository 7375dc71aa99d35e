"""Messages behind their lengths, for pipes between our own processes: four bytes say how many follow.

Pure: it is told how to read and never waits by itself.
"""

from collections.abc import Awaitable, Callable

HEAD = 4


class Overlong(Exception):
    """A message says that it is longer than it may be."""


def framed(body: bytes) -> bytes:
    """The body as it travels."""
    return len(body).to_bytes(HEAD, "big") + body


def read_framed(read: Callable[[int], bytes]) -> bytes | None:
    """The next body, by a function that reads so many bytes; None if the other side ends before it is whole."""
    head = read(HEAD)
    if len(head) < HEAD:
        return None
    size = int.from_bytes(head, "big")
    body = read(size)
    return body if len(body) == size else None


async def next_framed(read: Callable[[int], Awaitable[bytes]], longest: int) -> bytes:
    """The next body, by a function that reads exactly so many bytes or raises; Overlong before a longer one is read."""
    size = int.from_bytes(await read(HEAD), "big")
    if size > longest:
        raise Overlong
    return await read(size)
