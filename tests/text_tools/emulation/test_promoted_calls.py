"""Calls that a model with tool support leaks as text are promoted."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.typed import of
from tests.upstreams.wrapping import read
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, StepEnd, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Message, Part, Reasoning, Text, ToolCall
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef
from toolgate.testing import ScriptedModel
from toolgate.text_tools.emulation.emulation_notes import EmulationNote
from toolgate.text_tools.emulation.promoted_calls import PromotedCallsModel

WEATHER = ToolDef("get_weather", None, {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
LEAK = f"<function_calls>\n{CALL}\n</function_calls>"
PROPER = ToolCall("call_" + "a" * 24, "get_weather", '{"city":"Paris"}')


def asking(**fields: Any) -> ModelRequest:
    request = {"tools": (WEATHER,), "stream": True, **fields}
    return ModelRequest("m", (Message("user", (Text("How is the weather?"),)),), **request)


async def ask(
    written: str | Sequence[Part | Exception] | ModelResponse,
    request: ModelRequest | None = None,
    notes: list[EmulationNote] | None = None,
) -> tuple[ModelResponse, ScriptedModel]:
    model = ScriptedModel([written])
    noted = (lambda note: None) if notes is None else notes.append
    answer = await PromotedCallsModel(model, on_note=noted).ask(request or asking())
    events = await read(answer)
    _assert_well_formed(events)
    return fold(events), model


def _assert_well_formed(events: list[StepEvent]) -> None:
    open_part: Part | None = None
    deltas: list[str] = []
    for event in events:
        match event:
            case PartStart(part):
                assert open_part is None
                open_part, deltas = part, []
            case PartDelta(text):
                assert open_part is not None
                deltas.append(text)
            case PartEnd(part):
                assert type(part) is type(open_part)
                assert "".join(deltas) == (part.arguments if isinstance(part, ToolCall) else _text(part))
                open_part = None
    assert isinstance(events[-1], StepEnd)


def _text(part: Part) -> str:
    assert isinstance(part, Text | Reasoning)
    return part.text


def _summarize(part: Part) -> Any:
    return (part.name, part.arguments) if isinstance(part, ToolCall) else _text(part)


@pytest.mark.parametrize("before", ["", "Let me look.\n\n"])
async def test_a_leaked_call_of_a_declared_tool_is_promoted(before: str) -> None:
    """T4, field: F26, F5"""
    notes: list[EmulationNote] = []
    response, _ = await ask(f"{before}{LEAK}", notes=notes)
    assert [_summarize(part).strip() if isinstance(part, Text) else _summarize(part) for part in response.parts] == [
        *([before.strip()] if before else []),
        ("get_weather", '{"city":"Paris"}'),
    ]
    assert response.reason == "tool_calls"
    assert [note.kind for note in notes] == ["promoted_call"]


@pytest.mark.parametrize(
    "written",
    [
        LEAK.replace("get_weather", "rm_rf"),
        f"Write it like this:\n```\n{LEAK}\n```\nand it works.",
        'To call a tool one writes `<invoke name="get_weather">`.',
        "The get_weather tool takes a city.",
    ],
)
async def test_prose_and_code_and_other_names_are_never_calls(written: str) -> None:
    """field: F26"""
    response, _ = await ask(written)
    assert response.parts == (Text(written),)
    assert response.reason == "stop"


@pytest.mark.parametrize("before", ["", "Let me look. "])
async def test_a_leak_beside_a_proper_call_stays_text(before: str) -> None:
    response, _ = await ask([Text(f"{before}{LEAK}"), PROPER])
    assert response.parts == (Text(f"{before}{LEAK}"), PROPER)
    response, _ = await ask([PROPER, Text(LEAK)])
    assert response.parts == (PROPER, Text(LEAK))


async def test_a_leak_that_is_cut_off_stays_text() -> None:
    response, _ = await ask(ModelResponse((Text(LEAK[:-40]),), "length"))
    assert response.parts == (Text(LEAK[:-40]),)
    assert response.reason == "length"


async def test_reasoning_stays_in_place_around_a_leak() -> None:
    response, _ = await ask([Reasoning("Hm."), Text(f"So.\n{LEAK}"), Reasoning("Done?"), Text("Wait.")])
    assert [type(part) for part in response.parts] == [Reasoning, Text, ToolCall, Reasoning, Text]


async def test_text_without_a_call_keeps_its_extra_fields() -> None:
    noted = Text("Hello.", {"openai_responses": {"annotations": []}})
    response, _ = await ask(ModelResponse((noted,), "stop"))
    assert response.parts == (noted,)


@pytest.mark.parametrize("changes", [{"tools": ()}, {"tool_choice": ToolChoice("none")}])
async def test_where_no_tool_may_be_called_the_answer_is_unchanged(changes: dict[str, Any]) -> None:
    request = asking(**changes)
    response, model = await ask(LEAK, request)
    assert response.parts == (Text(LEAK),)
    assert model.requests[0] is request


async def test_text_is_emitted_as_it_comes() -> None:
    model = ScriptedModel(["One two three four five."])
    answer = await PromotedCallsModel(model).ask(asking())
    async for batch in answer.events():
        if any(isinstance(event, PartDelta) for event in batch):
            break
    assert not model.answers[0].complete
    await answer.aclose()
    assert model.answers[0].closed


@pytest.mark.parametrize(
    "leak", [LEAK[:-60], LEAK.replace("Paris</parameter>", "Paris").removesuffix("</function_calls>")[:-12]]
)
async def test_a_leaked_call_that_breaks_off_stays_text(leak: str) -> None:
    response, _ = await ask(leak)
    assert [type(part) for part in response.parts] == [Text]
    assert of(Text, response.parts[0]).text == leak
    assert response.reason == "stop"
