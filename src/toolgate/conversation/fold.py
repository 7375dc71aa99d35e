"""A stream of events and a whole answer are two forms of one thing; these turn each into the other."""

from collections.abc import Iterable

from toolgate.conversation.events import (
    Delta,
    Finish,
    ModelResponse,
    PartEnd,
    PartStart,
    RunEvent,
    StepEnd,
    StepEvent,
    StepStart,
)
from toolgate.conversation.message import Part, Reasoning, Refusal, Text, ToolCall, is_blank


def fold(events: Iterable[RunEvent]) -> ModelResponse:
    """The whole answer that the events tell; deltas are not looked at."""
    start, parts, end = StepStart(), [], None
    for event in events:
        match event:
            case PartEnd(part):
                parts.append(part)
            case StepStart():
                start = event
            case StepEnd() | Finish():
                end = event
    if end is None:
        raise ValueError("the events of an answer end in StepEnd or Finish")
    return ModelResponse(tuple(parts), end.reason, end.usage, start.id, start.model, end.stop_sequence, end.extra)


def is_empty(response: ModelResponse) -> bool:
    """Whether the model ended its answer by itself and has said nothing in it."""
    return response.reason in ("stop", "tool_calls") and all(is_blank(part) for part in response.parts)


def unfold(response: ModelResponse) -> list[StepEvent]:
    """The events of an answer that came whole: each part in one delta."""
    events: list[StepEvent] = [StepStart(response.id, response.model, response.usage)]
    for part in response.parts:
        events += unfold_part(part)
    events.append(StepEnd(response.reason, response.usage, response.stop_sequence, response.extra))
    return events


def unfold_part(part: Part) -> list[StepEvent]:
    """One part as its three events."""
    match part:
        case Text(text):
            return _spoken(Text("", part.extra), text, part)
        case Reasoning(text):
            return _spoken(Reasoning(""), text, part)
        case Refusal(text):
            return _spoken(Refusal("", part.extra), text, part)
        case ToolCall():
            opening = ToolCall(part.id, part.name, "", part.executor, part.freeform, extra=part.extra)
            return _spoken(opening, part.arguments, part)
        case _:
            return [PartStart(part), PartEnd(part)]


def _spoken(opening: Part, text: str, whole: Part) -> list[StepEvent]:
    if not text:
        return [PartStart(opening), PartEnd(whole)]
    return [PartStart(opening), Delta(text), PartEnd(whole)]
