"""The messages between the server and the engine process: JSON, each behind its length.

Pure: bytes in, values out. It knows neither processes nor the runtime.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.wire.length_prefix import encode_prefixed

# Bytes of one message, far above any context: a length beyond it means that the stream is garbled.
LONGEST = 64 * 1024 * 1024

Ending: TypeAlias = Literal["stop", "length", "stop_sequence", "cancelled"]


class EngineLoadFrame(Struct, frozen=True, tag="load"):
    """The first message: the weights to load and their resources. The prompt cache is in MiB."""

    path: str
    context: int
    threads: int
    cache: int


class EngineGenerateFrame(Struct, frozen=True, tag="generate"):
    """Generate an answer to these messages; `sampling` is passed on, `grammar` constrains the answer."""

    id: int
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    sampling: Mapping[str, Any] = {}
    stop: tuple[str, ...] = ()
    grammar: str | None = None


class EngineCancelFrame(Struct, frozen=True, tag="cancel"):
    """Cancel this answer."""

    id: int


class EngineReadyFrame(Struct, frozen=True, tag="ready"):
    """The weights are loaded."""

    seconds: float


class EngineLoadRefusedFrame(Struct, frozen=True, tag="refused"):
    """The weights cannot be loaded; the process ends."""

    message: str


class EnginePromptProgressFrame(Struct, frozen=True, tag="reading"):
    """The tokens of the prompt that have been read."""

    id: int
    done: int
    total: int


class EngineTextFrame(Struct, frozen=True, tag="text"):
    """More text of the answer."""

    id: int
    text: str


class EngineGenerationEndFrame(Struct, frozen=True, tag="over"):
    """The answer has ended: why, and its tokens; `cached` is the cached part of the prompt."""

    id: int
    ending: Ending
    prompt: int = 0
    cached: int = 0
    written: int = 0
    stop_sequence: str | None = None


class EngineGenerationFailedFrame(Struct, frozen=True, tag="failed"):
    """The answer failed; `prompt` and `context` are set when the prompt is longer than the context."""

    id: int
    message: str
    prompt: int | None = None
    context: int | None = None


Order: TypeAlias = EngineLoadFrame | EngineGenerateFrame | EngineCancelFrame
GenerationFrame: TypeAlias = (
    EnginePromptProgressFrame | EngineTextFrame | EngineGenerationEndFrame | EngineGenerationFailedFrame
)
Report: TypeAlias = EngineReadyFrame | EngineLoadRefusedFrame | GenerationFrame

_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(EngineLoadFrame | EngineGenerateFrame | EngineCancelFrame)
_REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(
    EngineReadyFrame
    | EngineLoadRefusedFrame
    | EnginePromptProgressFrame
    | EngineTextFrame
    | EngineGenerationEndFrame
    | EngineGenerationFailedFrame
)


def encode(message: Order | Report) -> bytes:
    """Encode a message."""
    return encode_prefixed(msgspec.json.encode(message))


def decode_order(body: bytes) -> Order:
    """Decode a message of the server."""
    return _ORDERS.decode(body)


def decode_report(body: bytes) -> Report:
    """Decode a message of the engine; `msgspec.DecodeError` if it is malformed."""
    return _REPORTS.decode(body)
