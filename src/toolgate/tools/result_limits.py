"""Limit the output of a tool to what a model should read, and redact secrets; notes list what was left out.

The runner passes every output through `limit_output`. Knows outputs alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import ToolOutput

# Characters beyond the cut in which a secret is still recognised; the longest credentials, such as keys in PEM, fit.
_OVERLAP = 4096
_MAX_ON_LOOP = 16 * 1024  # characters above which a thread does the work


class ToolCallLimits(Struct, frozen=True):
    """The limits of a call: its seconds, unless its tool has a limit of its own, and the size of its output.

    `output` counts characters of text, `media` those of encoded images and the like, `pieces` counts parts of both kinds.
    """

    seconds: float = 10.0
    output: int = 256 * 1024
    attempts: int = 2
    media: int = 5 * 1024 * 1024
    pieces: int = 100


async def limit_output(output: ToolOutput, limits: ToolCallLimits, redact: Callable[[str], str]) -> ToolOutput:
    """Limit and redact an output, in a thread if it is large.

    Data without text is encoded as text; an output whose data cannot be encoded becomes an error.
    """
    # Data is of unknown size until it is encoded, so that an output with data goes to a thread, too.
    size = sum([len(piece.text) for piece in output.content if isinstance(piece, Text)])
    if size <= _MAX_ON_LOOP and output.structured is None and not output.meta:
        return _limit(output, limits, redact)
    return await asyncio.to_thread(_limit, output, limits, redact)


def _limit(output: ToolOutput, limits: ToolCallLimits, redact: Callable[[str], str]) -> ToolOutput:
    try:
        encoded = "" if output.structured is None else msgspec.json.encode(output.structured).decode()
        meta = msgspec.json.encode(output.meta).decode()
    except (TypeError, ValueError, RecursionError) as error:
        return ToolOutput(
            (Text(f"The tool returned data that cannot be written as JSON: {str(error)[:200]}"),), is_error=True
        )
    content = output.content or ((Text(encoded),) if encoded else ())
    return replace(
        output,
        content=tuple(_limit_content(content, limits, redact)),
        structured=_redacted(output.structured, encoded, limits.output, redact),
        meta=_redacted(output.meta, meta, limits.output, redact) or {},
    )


def _limit_content(
    content: Sequence[Text | Media], limits: ToolCallLimits, redact: Callable[[str], str]
) -> Iterator[Text | Media]:
    left, media = limits.output, limits.media
    for piece in content[: limits.pieces]:
        match piece:
            case Text(text, extra):
                # A secret may lie across the cut, so what is redacted reaches a little further than what is kept.
                # Halves of surrogate pairs are replaced because no wire format can carry them.
                kept = redact(text[: left + _OVERLAP].encode("utf-8", "replace").decode())
                if len(text) > left:
                    more = len(text) - left
                    kept = f"{kept[:left]}\n[truncated: {more} of {len(text)} characters are left out]"
                yield Text(kept, extra)
                left = max(0, left - len(text))
            case Media(data=data) if data is not None and len(data) > media:
                yield Text(f"[left out: {piece.kind} of {len(data)} characters, which is too large]")
            case Media(data=data):
                media -= len(data or "")
                yield piece
    if len(content) > limits.pieces:
        yield Text(f"[truncated: {len(content) - limits.pieces} of {len(content)} pieces are left out]")


def _redacted(value: Any, encoded: str, limit: int, redact: Callable[[str], str]) -> Any:
    """Redact secrets in data; None if it is too large, or no longer JSON without them."""
    if len(encoded) > limit:
        return None
    # Secrets are looked for in the JSON text: that covers keys and values at any depth in one pass.
    clean = redact(encoded)
    if clean == encoded:
        return value
    try:
        return msgspec.json.decode(clean)
    except (msgspec.DecodeError, RecursionError):
        return None
