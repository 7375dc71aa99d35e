"""When two requests or two answers mean the same, and what a dialect cannot express.

A dialect folder that appears here under no name is held to everything.
"""

import json
import math
from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any

from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.message import (
    Media,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
    content_with_error_prefix,
)
from toolgate.conversation.request import ModelRequest, ToolChoice

UNSUPPORTED: dict[str, frozenset[str]] = {
    "openai_chat": frozenset({"result_errors"}),
    "openai_responses": frozenset({"result_errors", "top_k", "stop", "seed", "penalties"}),
    "anthropic": frozenset({"seed", "penalties"}),
    "ollama": frozenset({"result_errors", "strict", "tool_choice", "user", "details", "half_calls", "signatures"}),
}
"""What has no place in a dialect: error marks of results, strict tools, a choice of tools, settings by name, counts beyond
input and output (`details`), calls that were cut off (`half_calls`), other dialects' signatures (`signatures`)."""

_PENALTIES = ("frequency_penalty", "presence_penalty")


def unsupported(*dialects: str) -> frozenset[str]:
    """What none of these dialects can express."""
    return frozenset().union(*[UNSUPPORTED.get(name, frozenset()) for name in dialects])


def answer_meaning(response: ModelResponse, lost: Collection[str] = ()) -> dict[str, Any]:
    """What an answer means: dialects differ in how they order and cut it, not in this."""
    parts, usage = response.parts, response.usage
    calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
    counts = (usage.input, usage.output) if usage else None
    return {
        "reasoning": "".join([part.text for part in parts if isinstance(part, Reasoning)]),
        "words": "".join([part.text for part in parts if isinstance(part, (Text, RefusalPart))]),
        "calls": [call for call in calls if call["complete"] or "half_calls" not in lost],
        "reason": response.reason,
        "counts": counts,
        "details": (usage.cache_read, usage.reasoning) if usage and "details" not in lost else None,
    }


def request_meaning(request: ModelRequest, lost: Collection[str] = ()) -> dict[str, Any]:
    """What a request means: its parts in order, the tools on offer, the choice, and the settings."""
    settings = request.settings
    choice = request.tool_choice
    plain = {
        name: getattr(settings, name)
        for name in ("max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "user", *_PENALTIES)
        if name not in lost and not (name in _PENALTIES and "penalties" in lost)
    }
    return {
        **plain,
        "parts": [_part_meaning(message.role, part, lost) for message in request.messages for part in message.parts],
        "tools": _tools(request, lost),
        "choice": (choice.mode, choice.names, choice.parallel) if choice and "tool_choice" not in lost else None,
        "output": settings.output.schema if settings.output else None,
        "thinking": (settings.thinking.enabled, settings.thinking.effort) if settings.thinking else None,
        "stream": request.stream,
    }


def _tools(request: ModelRequest, lost: Collection[str]) -> list[Any]:
    """Where there is no choice of tools, it is made by what is on offer."""
    choice, offered = request.tool_choice or ToolChoice(), request.tools
    if "tool_choice" in lost:
        named = [tool for tool in offered if not choice.names or tool.name in choice.names]
        offered = () if choice.mode == "none" else tuple(named)
    empty = {"type": "object", "properties": {}}
    return [
        (tool.name, tool.description, tool.input_schema or empty, "strict" not in lost and bool(tool.strict))
        for tool in offered
    ]


def _part_meaning(role: str, part: Part, lost: Collection[str]) -> tuple[Any, ...]:
    match part:
        case Text(text):
            return (role, "text", text)
        case Media():
            return (role, "media", part.kind, part.mime, part.data, part.url)
        case ToolCall():
            return (role, "call", *_call(part).values())
        case ToolResult(call_id, content, is_error):
            content = content_with_error_prefix(part) if "result_errors" in lost else content
            text = "".join([piece.text for piece in content if isinstance(piece, Text)])
            return ("tool", "result", call_id, text, None if "result_errors" in lost else is_error)
        case _:
            return (role, part)


def _call(call: ToolCall) -> dict[str, Any]:
    read = _json(call.arguments) if call.complete else call.arguments.strip()
    return {"id": call.id, "name": call.name, "arguments": read, "complete": call.complete}


def _json(text: str) -> Any:
    def number(text: str) -> float | Decimal:
        return float(text) if math.isfinite(float(text)) else Decimal(text)

    return json.loads(text, parse_float=number)


def well_formed(events: Iterable[StepEvent]) -> list[StepEvent]:
    """The events, checked against the grammar: one step, one part open at a time, and deltas that make up the part."""
    all_events = list(events)
    assert isinstance(all_events[0], StepStart)
    assert isinstance(all_events[-1], StepEnd)
    opened: Part | None = None
    deltas: list[str] = []
    for event in all_events[1:-1]:
        match event:
            case PartStart(part):
                assert opened is None, "a part begins while another is open"
                opened, deltas = part, []
            case PartDelta(text):
                assert opened is not None, "a delta of no part"
                assert text, "a delta that says nothing"
                deltas.append(text)
            case PartEnd(part):
                assert opened is not None, "a part ends that never began"
                _check_part(opened, part, "".join(deltas))
                opened = None
            case _:
                raise AssertionError(f"{event} amid a step")
    assert opened is None, "the step ends amid a part"
    return all_events


def _check_part(opened: Part, whole: Part, deltas: str) -> None:
    assert type(opened) is type(whole)
    match whole:
        case Text(text) | RefusalPart(text) | Reasoning(text):
            assert deltas == text
        case ToolCall():
            assert isinstance(opened, ToolCall)
            assert (opened.id, opened.name) == (whole.id, whole.name)
            if whole.complete:
                assert _json(deltas) == _json(whole.arguments)
            else:
                assert deltas.strip() == whole.arguments.strip()
