"""The public fakes say what their script says."""

import asyncio

import pytest

from tests.typed import of
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    StepEnd,
    StepEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Message, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ModelStream
from toolgate.testing import ScriptedModel, scripted_answer

REQUEST = ModelRequest("m", (Message("user", (Text("hello"),)),))
CALL = ToolCall("call_1", "get_time", '{"zone": "Europe/Copenhagen"}')


async def read(answer: ModelStream) -> list[StepEvent]:
    return [event async for batch in answer.events() for event in batch]


async def test_a_string_is_emitted_word_by_word() -> None:
    answer = await ScriptedModel(["Hello out there."]).ask(REQUEST)
    events = await read(answer)
    assert [event.text for event in events if isinstance(event, PartDelta)] == ["Hello", " out", " there."]
    assert fold(events).parts == (Text("Hello out there."),)
    assert answer.complete
    assert not answer.closed


async def test_parts_are_reported_in_order_and_calls_give_the_reason() -> None:
    answer = await ScriptedModel([[Text("One moment."), CALL]]).ask(REQUEST)
    response = fold(await read(answer))
    assert response.parts == (Text("One moment."), CALL)
    assert response.reason == "tool_calls"


async def test_arguments_come_in_pieces() -> None:
    events = await read(await ScriptedModel([[CALL]]).ask(REQUEST))
    pieces = [event.text for event in events if isinstance(event, PartDelta)]
    assert len(pieces) > 1
    assert "".join(pieces) == CALL.arguments


async def test_a_response_is_reported_as_it_is_with_usage_and_reason() -> None:
    response = ModelResponse((Text("cut"),), "length", Usage(3, 1), id="r1", model="m1")
    assert fold(await read(await ScriptedModel([response]).ask(REQUEST))) == response


async def test_an_exception_is_raised_before_the_first_piece() -> None:
    with pytest.raises(UpstreamUnavailable, match="out of order"):
        await ScriptedModel([UpstreamUnavailable("out of order")]).ask(REQUEST)


async def test_an_exception_among_the_parts_breaks_the_answer_off() -> None:
    answer = await ScriptedModel([[Text("half"), InvalidUpstreamAnswer("cut short"), Text("never told")]]).ask(REQUEST)
    with pytest.raises(InvalidUpstreamAnswer):
        await read(answer)
    assert answer.read_events[-1] == PartEnd(Text("half"))
    assert not answer.complete


async def test_a_function_of_the_request_may_answer_also_after_a_while() -> None:
    async def later(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return f"You asked {request.model}."

    model = ScriptedModel([lambda request: of(Text, request.messages[0].parts[0]).text.upper(), later])
    assert fold(await read(await model.ask(REQUEST))).parts == (Text("HELLO"),)
    assert fold(await read(await model.ask(REQUEST))).parts == (Text("You asked m."),)


async def test_requests_and_answers_are_kept() -> None:
    model = ScriptedModel(["one", "two"])
    answers = [await model.ask(REQUEST), await model.ask(REQUEST)]
    assert model.requests == [REQUEST, REQUEST]
    assert model.answers == answers


async def test_a_script_that_has_ended_fails_with_the_number_of_the_request() -> None:
    model = ScriptedModel(["one"])
    await model.ask(REQUEST)
    with pytest.raises(AssertionError, match="request 2"):
        await model.ask(REQUEST)


async def test_pace_holds_the_answer_after_its_first_event() -> None:
    steps: asyncio.Queue[None] = asyncio.Queue()
    answer = await ScriptedModel(["a b"], pace=steps.get).ask(REQUEST)
    reading = asyncio.create_task(read(answer))
    await asyncio.sleep(0)
    assert [type(event) for event in answer.read_events] == [StepStart]
    for _ in range(5):
        steps.put_nowait(None)
    await asyncio.wait_for(reading, 30)
    assert answer.complete


async def test_an_answer_can_be_scripted_event_by_event() -> None:
    events: list[StepEvent] = [StepStart(), PartStart(Text("")), PartDelta("hm"), PartEnd(Text("hm")), StepEnd("stop")]
    assert await read(scripted_answer(events)) == events


async def test_a_closed_answer_yields_no_more_events() -> None:
    answer = scripted_answer([StepStart(), StepEnd("stop")])
    reading = answer.events()
    await anext(reading)
    await answer.aclose()
    assert answer.closed
    assert [batch async for batch in reading] == []
    assert not answer.complete
