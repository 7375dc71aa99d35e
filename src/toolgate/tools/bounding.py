"""What a tool gave, cut to what a model should read and cleared of secrets; what is left out is said.

Knows outputs alone. Whoever runs tools lets no output pass that has not been here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import Media, Text
from toolgate.tools.tool import Output

_OVERLAP = 4096
_AT_ONCE = 16 * 1024


class Bounds(Struct, frozen=True):
    """What a call may take unless its tool says otherwise: seconds, and what of its output reaches the model.

    `output` counts characters of text, `media` those of pictures and the like as they are sent, `pieces` both.
    """

    seconds: float = 10.0
    output: int = 256 * 1024
    attempts: int = 2
    media: int = 5 * 1024 * 1024
    pieces: int = 100


async def bounded(output: Output, bounds: Bounds, redact: Callable[[str], str]) -> Output:
    """The output within bounds; data without words is put in words, and data that cannot be written is a failure.

    A large one is looked through in a thread.
    """
    size = sum([len(piece.text) for piece in output.content if isinstance(piece, Text)])
    if size <= _AT_ONCE and output.structured is None and not output.meta:
        return _bounded(output, bounds, redact)
    return await asyncio.to_thread(_bounded, output, bounds, redact)


def _bounded(output: Output, bounds: Bounds, redact: Callable[[str], str]) -> Output:
    try:
        written = "" if output.structured is None else msgspec.json.encode(output.structured).decode()
        meta = msgspec.json.encode(output.meta).decode()
    except (TypeError, ValueError, RecursionError) as error:
        return Output((Text(f"The tool gave data that cannot be written as JSON: {str(error)[:200]}"),), is_error=True)
    content = output.content or ((Text(written),) if written else ())
    return replace(
        output,
        content=tuple(_cut(content, bounds, redact)),
        structured=_safe(output.structured, written, bounds.output, redact),
        meta=_safe(output.meta, meta, bounds.output, redact) or {},
    )


def _cut(content: Sequence[Text | Media], bounds: Bounds, redact: Callable[[str], str]) -> Iterator[Text | Media]:
    left, media = bounds.output, bounds.media
    for piece in content[: bounds.pieces]:
        match piece:
            case Text(text, extra):
                # A secret may lie across the cut: what is looked through reaches a little further than what is kept.
                yield Text(_shortened(redact(_sayable(text[: left + _OVERLAP])), len(text), left), extra)
                left = max(0, left - len(text))
            case Media(data=data) if data is not None and len(data) > media:
                yield Text(f"[left out: {piece.kind} of {len(data)} characters, which is too large]")
            case Media(data=data):
                media -= len(data or "")
                yield piece
    if len(content) > bounds.pieces:
        yield Text(f"[truncated: {len(content) - bounds.pieces} of {len(content)} pieces are left out]")


def _sayable(text: str) -> str:
    """The text with halves of surrogate pairs, which no wire format can carry, replaced."""
    return text.encode("utf-8", "replace").decode()


def _shortened(seen: str, length: int, limit: int) -> str:
    if length <= limit:
        return seen
    return f"{seen[:limit]}\n[truncated: {length - limit} of {length} characters are left out]"


def _safe(value: Any, written: str, limit: int, redact: Callable[[str], str]) -> Any:
    """The data without secrets; None if there is too much of it, or nothing is left of it without them."""
    if len(written) > limit:
        return None
    clean = redact(written)
    if clean == written:
        return value
    try:
        return msgspec.json.decode(clean)
    except (msgspec.DecodeError, RecursionError):
        return None
