"""What the gateway and the engine's process say to each other: JSON messages, each behind its length.

Pure: bytes in, values out. It knows neither processes nor the runtime.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.wire.lengths import framed

LONGEST = 64 * 1024 * 1024

Ending: TypeAlias = Literal["stop", "length", "stop_sequence", "cancelled"]


class Load(Struct, frozen=True, tag="load"):
    """Said once, first: the weights to load, and what they may use. Memory of past prompts is in MiB."""

    path: str
    context: int
    threads: int
    cache: int


class Generate(Struct, frozen=True, tag="generate"):
    """Answer these messages; `sampling` is passed on as it is, `grammar` holds the answer to a form."""

    id: int
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    sampling: Mapping[str, Any] = {}
    stop: tuple[str, ...] = ()
    grammar: str | None = None


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for this answer any more."""

    id: int


class Ready(Struct, frozen=True, tag="ready"):
    """The weights are loaded."""

    seconds: float


class Refused(Struct, frozen=True, tag="refused"):
    """The weights cannot be loaded; the process ends."""

    message: str


class Reading(Struct, frozen=True, tag="reading"):
    """How much of the prompt has been read, in tokens."""

    id: int
    done: int
    total: int


class Said(Struct, frozen=True, tag="said"):
    """More of the answer."""

    id: int
    text: str


class Over(Struct, frozen=True, tag="over"):
    """The answer has ended: why, and what it took in tokens; `cached` is the part of the prompt that was known already."""

    id: int
    ending: Ending
    prompt: int = 0
    cached: int = 0
    written: int = 0
    stop_sequence: str | None = None


class Failed(Struct, frozen=True, tag="failed"):
    """There is no answer, or no more of it; `prompt` and `context` are told when the prompt is longer than the context."""

    id: int
    message: str
    prompt: int | None = None
    context: int | None = None


Order: TypeAlias = Load | Generate | Cancel
Told: TypeAlias = Reading | Said | Over | Failed
Report: TypeAlias = Ready | Refused | Told

_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Load | Generate | Cancel)
_REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Ready | Refused | Reading | Said | Over | Failed)


def encode(message: Order | Report) -> bytes:
    """The message as it travels."""
    return framed(msgspec.json.encode(message))


def decode_order(body: bytes) -> Order:
    """What the gateway said."""
    return _ORDERS.decode(body)


def decode_report(body: bytes) -> Report:
    """What the engine said; DecodeError if it does not speak as agreed."""
    return _REPORTS.decode(body)
