"""Frame messages by their length, for pipes between our own processes: four bytes give the number that follows.

Does no I/O itself: the caller passes the function that reads.
"""

from collections.abc import Awaitable, Callable

PREFIX_BYTES = 4


class OverlongMessage(Exception):
    """The length of a message exceeds the limit."""


def encode_prefixed(body: bytes) -> bytes:
    """Return the body behind its length."""
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def read_prefixed(read: Callable[[int], bytes]) -> bytes | None:
    """Read the next body by a function that reads so many bytes; None if the stream ends before it is complete."""
    head = read(PREFIX_BYTES)
    if len(head) < PREFIX_BYTES:
        return None
    size = int.from_bytes(head, "big")
    body = read(size)
    return body if len(body) == size else None


async def read_prefixed_async(read: Callable[[int], Awaitable[bytes]], longest: int) -> bytes:
    """Read the next body by a function that reads exactly so many bytes; raise OverlongMessage before a longer one."""
    size = int.from_bytes(await read(PREFIX_BYTES), "big")
    # Before anything is read: the other side must not decide how much memory is taken.
    if size > longest:
        raise OverlongMessage
    return await read(size)
