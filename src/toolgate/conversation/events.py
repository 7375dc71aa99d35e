"""Define the events of an answer and their grammar.

    run   := step RunEnd
    step  := StepStart (part | ToolProgress)* StepEnd
    part  := PartStart PartDelta* PartEnd

A run in which the gateway runs tools asks the model several times, yet it is emitted as one step: its calls and their
results are parts like others.

One part is open at a time, so a `PartDelta` needs no address. `PartEnd` carries the complete part: storage, the tool loop
and whole answers read `PartEnd` alone and work without any deltas. An error is an exception, never an event.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.message import NO_EXTRA, Extra, Part

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter", "pause"]


class Usage(Struct, frozen=True):
    """Tokens of one step or run; `input` includes `cache_read` and `cache_write`, `output` includes `reasoning`.

    `missing` is the count that an upstream has not reported beside the other: until it is estimated, it is 0.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False
    missing: Literal["input", "output"] | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Add two usages; the sum is estimated if one of them is."""
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )

    def following(self, before: "Usage | None") -> "Usage":
        """Return what an upstream has reported of a step by now, after what it reported before.

        The counts of a stream are cumulative, so that one that is lower or missing in a later report takes nothing back.
        """
        if before is None:
            return self
        return Usage(
            max(before.input, self.input),
            max(before.output, self.output),
            max(before.cache_read, self.cache_read),
            max(before.cache_write, self.cache_write),
            max(before.reasoning, self.reasoning),
            missing=before.missing if before.missing == self.missing else None,
        )


class StepStart(Struct, frozen=True):
    """A model began to answer; `id` and `model` are the upstream's own, for the record.

    `usage` is what the upstream already reports of the input, where its dialect does so this early.
    """

    id: str | None = None
    model: str | None = None
    usage: Usage | None = None


class PartStart(Struct, frozen=True):
    """A part begins; it carries what is known so far: an empty text, or a call with its id and name."""

    part: Part


class PartDelta(Struct, frozen=True):
    """More of the open part: text, reasoning, refusal or argument text by the part's kind."""

    text: str


class PartEnd(Struct, frozen=True):
    """The open part is complete, and this is all of it."""

    part: Part


class ToolProgress(Struct, frozen=True):
    """The progress of a call that the gateway runs, as a message, as numbers or both."""

    call_id: str
    message: str | None = None
    done: float | None = None
    total: float | None = None


class StepEnd(Struct, frozen=True):
    """The model stopped; `usage` is None if the upstream did not report it."""

    reason: FinishReason
    usage: Usage | None = None
    stop_sequence: str | None = None
    extra: Extra = NO_EXTRA


class RunEnd(Struct, frozen=True):
    """The run is over; `usage` is the sum over its steps."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    extra: Extra = NO_EXTRA


StepEvent: TypeAlias = StepStart | PartStart | PartDelta | PartEnd | ToolProgress | StepEnd
RunEvent: TypeAlias = StepStart | PartStart | PartDelta | PartEnd | ToolProgress | StepEnd | RunEnd


class ModelResponse(Struct, frozen=True):
    """A whole answer; `id` and `model` are the upstream's own, for the record."""

    parts: tuple[Part, ...]
    reason: FinishReason
    usage: Usage | None = None
    id: str | None = None
    model: str | None = None
    stop_sequence: str | None = None
    extra: Extra = NO_EXTRA
