"""Requests and answers of every kind that all dialects can speak of, for the laws that hold in each of them.

What a single dialect cannot say is left to `meaning.py`; what no two dialects say alike (pictures in results, freeform
tools, refusals, pauses) is left to the dialects' own tests.
"""

import base64
import json
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from toolgate.conversation.events import ModelResponse, PartDelta, RunEnd, RunEvent, Usage
from toolgate.conversation.fold import unfold
from toolgate.conversation.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from toolgate.conversation.request import (
    ModelRequest,
    ReasoningSettings,
    RequestSettings,
    StructuredOutputFormat,
    ToolChoice,
    ToolDef,
)
from toolgate.conversation.surrogates import repair_json_surrogates

# Everyone tests the same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("ci", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def law(examples: int) -> settings:
    """So many examples for a law; values of this size take a moment to draw."""
    if settings.get_current_profile_name() == "explore":
        return settings()
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])


_AWKWARD = [
    "a\u2028b\x85c\r\nd\n\ne",
    "data: [DONE]",
    '"}{"\\',
    "\ufeff👩‍🚀 é\x00",
    "<think>hm</think>",
    " blanks ",
]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(_AWKWARD)

words = texts.map(lambda text: f"w{text}w")
"""Text that neither begins nor ends in a blank, for some dialects take blanks off a message's ends."""

_NAMES = ["get_weather", "f", "search-files", "x1", "a_rather_long_name_of_a_tool_that_says_it_all"]
_IDS = [f"call_{number:024d}" for number in range(20)]

_numbers = st.one_of(
    st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False, width=32), st.just(2**53 + 1)
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def arguments(draw: st.DrawFn) -> str:
    """The text of a JSON object, spelled in one of the ways that models spell it."""
    value = draw(st.dictionaries(texts, json_values, max_size=3))
    indent, ascii = draw(st.sampled_from([None, None, 1])), draw(st.booleans())
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    return text.replace("{", '{"enormous": 1e400, ', 1) if value and draw(st.integers(0, 9)) == 0 else text


_SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer", "enum": [1]}}},
]


@st.composite
def tool_defs(draw: st.DrawFn) -> tuple[ToolDef, ...]:
    """Tools with names of their own."""
    chosen = _NAMES[: draw(st.integers(0, 3))]
    return tuple(
        [
            ToolDef(
                name,
                draw(st.sampled_from([None, "What it does."])),
                draw(st.sampled_from([None, *_SCHEMAS])),
                draw(st.sampled_from([None, None, True, False])),
            )
            for name in chosen
        ]
    )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Counts in which the parts do not exceed the whole."""
    given, made = draw(st.integers(1, 10**6)), draw(st.integers(1, 10**6))
    return Usage(given, made, draw(st.integers(0, given)), 0, draw(st.integers(0, made)))


@st.composite
def responses(draw: st.DrawFn, tools: tuple[ToolDef, ...] = ()) -> ModelResponse:
    """A whole answer: thoughts, words and calls in any order, and why it ended."""
    tool_names, ids = [tool.name for tool in tools] or _NAMES, iter(_IDS)
    parts: list[Part] = []
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=4)):
        if kind == "call":
            parts.append(ToolCall(next(ids), draw(st.sampled_from(tool_names)), draw(arguments())))
        else:
            parts.append(Text(draw(texts)) if kind == "text" else Reasoning(draw(texts)))
    reason = draw(st.sampled_from(["stop", "stop", "length", "content_filter"]))
    if reason in ("length", "content_filter"):
        # Nobody can tell a call without arguments from one that was cut off before them.
        parts = [part for part in parts if not isinstance(part, ToolCall) or part.arguments != "{}"]
    if reason == "length" and draw(st.booleans()):
        parts.append(draw(_half_calls(next(ids), tool_names[0])))
    elif reason != "length" and any(isinstance(part, ToolCall) for part in parts):
        reason = "tool_calls"
    return ModelResponse(tuple(parts), reason, draw(usages()))  # type: ignore[arg-type]  # one of the words above


@st.composite
def _half_calls(draw: st.DrawFn, id: str, name: str) -> ToolCall:
    text = draw(arguments().filter(lambda text: len(text) > 2))
    cut = text[: draw(st.integers(1, len(text) - 1))].strip()
    return ToolCall(id, name, repair_json_surrogates(cut), complete=False)  # no decoder lets a lone surrogate pass


def run_events(response: ModelResponse, size: int) -> list[RunEvent]:
    """The events of a run that gives this answer, in deltas of at most `size` characters."""
    events: list[RunEvent] = []
    for event in unfold(response):
        if isinstance(event, PartDelta):
            events += [PartDelta(event.text[i : i + size]) for i in range(0, len(event.text), size)]
        else:
            events.append(event)
    assert response.usage is not None
    return [*events, RunEnd(response.reason, response.usage, response.stop_sequence, response.extra)]


images = st.binary(min_size=1, max_size=12).map(
    lambda data: Media("image", "image/png", base64.b64encode(b"\x89PNG\r\n\x1a\n\x00" + data).decode())
)


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    """A conversation in which the user and the model speak by turns and every call is answered."""
    tools = draw(tool_defs())
    messages = [Message("system", (Text(draw(words)),))] if draw(st.booleans()) else []
    ids = iter(_IDS)
    messages.append(Message("user", (Text(draw(words)), *draw(st.lists(images, max_size=1)))))
    for _ in range(draw(st.integers(0, 2))):
        messages += draw(_exchanges(tools, [next(ids) for _ in range(3)]))
    return ModelRequest(
        "some-model",
        tuple(messages),
        tools,
        draw(_choices(tools)) if tools else None,
        draw(settings_of_requests()),
        draw(st.booleans()),
    )


@st.composite
def _exchanges(draw: st.DrawFn, tools: tuple[ToolDef, ...], ids: list[str]) -> list[Message]:
    """The parts of an answer, and the results of its calls."""
    chosen = draw(st.lists(st.sampled_from([tool.name for tool in tools]), max_size=3)) if tools else []
    calls = [ToolCall(id, name, draw(arguments())) for id, name in zip(ids, chosen, strict=False)]
    sent = (Text(draw(words)),) if not calls or draw(st.booleans()) else ()
    results = [
        Message("tool", (ToolResult(call.id, (Text(draw(words)),), draw(st.none() | st.booleans())),)) for call in calls
    ]
    more = [Message("user", (Text(draw(words)),))] if not calls or draw(st.booleans()) else []
    return [Message("assistant", (*sent, *calls)), *results, *more]


@st.composite
def _choices(draw: st.DrawFn, tools: tuple[ToolDef, ...]) -> ToolChoice | None:
    match draw(st.sampled_from([None, "auto", "none", "required", "named"])):
        case None:
            return None
        case "none":
            return ToolChoice("none")
        case "named":
            return ToolChoice("required", (tools[0].name,), draw(st.none() | st.booleans()))
        case mode:
            return ToolChoice(mode, (), draw(st.none() | st.booleans()))  # type: ignore[arg-type]  # auto or required


@st.composite
def settings_of_requests(draw: st.DrawFn) -> RequestSettings:
    """Settings that do not rule each other out in any dialect."""
    fraction = st.sampled_from([None, 0, 0.25, 1.0])
    thinks, heats = draw(st.booleans()), draw(st.booleans())
    return RequestSettings(
        max_tokens=draw(st.sampled_from([16_384, 100_000])),
        temperature=draw(fraction) if not thinks and heats else None,
        top_p=draw(fraction) if not thinks and not heats else None,
        top_k=draw(st.sampled_from([None, 1, 40])) if not thinks else None,
        stop=draw(st.sampled_from([(), ("END",), ("\n\nHuman:", "[DONE]")])),
        seed=draw(st.sampled_from([None, 0, 2**31])),
        frequency_penalty=draw(fraction),
        presence_penalty=draw(fraction),
        output=draw(st.sampled_from([None, *map(StructuredOutputFormat, _SCHEMAS)])),
        thinking=ReasoningSettings(True, draw(st.sampled_from(["low", "medium", "high"]))) if thinks else None,
        user=draw(st.sampled_from([None, "somebody"])),
    )
