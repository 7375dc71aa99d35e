"""A picture as a result, progress on the way, and an ear for cancellation."""

import struct
import zlib
from typing import Annotated

from msgspec import Meta

from toolgate.lm import CancellationToken, LanguageModelDataPart, Progress, ToolFailure, tool

HEIGHT = 120
BAR = 20


@tool(timeout=30, cache_seconds=3600)
def draw_bars(
    values: Annotated[list[float], Meta(min_length=1, max_length=50)], progress: Progress, token: CancellationToken
) -> LanguageModelDataPart:
    """Draw a bar chart.

    Args:
        values: One number for each bar, none below zero.
    """
    top = max(values)
    if min(values) < 0 or top == 0:
        raise ToolFailure("Give numbers that are not below zero, at least one of them above it.")
    rows = []
    for line in range(HEIGHT):
        if token.is_cancellation_requested:
            raise ToolFailure("Cancelled.")
        progress.report("Drawing", line, HEIGHT)
        rows.append(b"\0" + b"".join(_bar(value / top * HEIGHT > HEIGHT - line - 1) for value in values))
    return LanguageModelDataPart.image(_png(len(values) * BAR, rows), "image/png")


def _bar(filled: bool) -> bytes:
    return (b"\x40" if filled else b"\xff") * (BAR - 2) + b"\xff" * 2


def _png(width: int, rows: list[bytes]) -> bytes:
    """A grey picture of those rows."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, len(rows), 8, 0, 0, 0, 0)
    packed = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
