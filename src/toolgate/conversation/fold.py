"""Convert between a stream of events and a whole answer."""

from collections.abc import Iterable

from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    StepEnd,
    StepEvent,
    StepStart,
)
from toolgate.conversation.message import Part, Reasoning, RefusalPart, Text, ToolCall, is_blank


def fold(events: Iterable[RunEvent]) -> ModelResponse:
    """Return the whole answer of these events; deltas are not read."""
    start, parts, end = StepStart(), [], None
    for event in events:
        match event:
            case PartEnd(part):
                parts.append(part)
            case StepStart():
                start = event
            case StepEnd() | RunEnd():
                end = event
    if end is None:
        raise ValueError("the events of an answer end in StepEnd or RunEnd")
    return ModelResponse(tuple(parts), end.reason, end.usage, start.id, start.model, end.stop_sequence, end.extra)


def is_empty(response: ModelResponse) -> bool:
    """Return whether the model ended its answer by itself with neither text nor a call in it."""
    for part in response.parts:  # a generator costs more than the look, and every answer pays for it
        if not is_blank(part):
            return False
    return response.reason in ("stop", "tool_calls")


def unfold(response: ModelResponse) -> list[StepEvent]:
    """Return the events of a whole answer: each part in one delta."""
    events: list[StepEvent] = [StepStart(response.id, response.model, response.usage)]
    for part in response.parts:
        events += unfold_part(part)
    events.append(StepEnd(response.reason, response.usage, response.stop_sequence, response.extra))
    return events


def unfold_part(part: Part) -> list[StepEvent]:
    """Return the events of one part: its start, one delta if it has text, its end."""
    opening: Part
    match part:
        case Text(text):
            opening = Text("", part.extra)
        case Reasoning(text):
            opening = Reasoning("")
        case RefusalPart(text):
            opening = RefusalPart("", part.extra)
        case ToolCall(arguments=text):
            opening = ToolCall(part.id, part.name, "", part.executor, part.freeform, extra=part.extra)
        case _:
            return [PartStart(part), PartEnd(part)]
    return [PartStart(opening), PartDelta(text), PartEnd(part)] if text else [PartStart(opening), PartEnd(part)]
