"""The official OpenAI client, Responses API, over every upstream dialect."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.scenes import (
    CUT_OFF,
    HELLO,
    ID1,
    JSON_ANSWER,
    LOOK_UP,
    LOOK_UP_TWICE,
    SUNNY,
    THOUGHT,
    WEATHER_SCHEMA,
    calls_received,
    results_received,
    weather,
)
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Part, Text, ToolCall, plain_text
from toolgate.conversation.request import ModelRequest

TOOLS: Any = [{"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER_SCHEMA}]
over_every_upstream = pytest.mark.parametrize("model", UPSTREAMS)


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@over_every_upstream
def test_a_text_turn(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(HELLO)
    answer = client.responses.create(model=model, input="Hi")
    assert answer.output_text == "Hello from the model."
    assert answer.status == "completed"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (12, 5)


@over_every_upstream
def test_a_streamed_text_turn(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(HELLO)
    with client.responses.stream(model=model, input="Hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert final.output_text == "Hello from the model."
    assert [event.sequence_number for event in events] == list(range(len(events)))


def run_tools(client: OpenAI, model: str, stream: bool, chained: bool) -> str:
    """The loop that every agent has; chained, it sends only what is new."""
    items: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    previous: str | None = None
    for _ in range(5):
        options: Any = {"model": model, "input": items, "tools": TOOLS, "previous_response_id": previous}
        if stream:
            with client.responses.stream(**options) as streamed:
                response: Any = streamed.get_final_response()
        else:
            response = client.responses.create(**options)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": weather(**json.loads(call.arguments))}
            for call in calls
        ]
        if chained:
            items, previous = results, response.id
        else:
            items = [*items, *[item.model_dump(exclude_none=True) for item in response.output], *results]
            for item in items:
                item.pop("parsed_arguments", None)
    raise AssertionError("the loop did not end")


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chained", [True, False])
def test_a_tool_round_trip(stage: Stage, client: OpenAI, model: str, stream: bool, chained: bool) -> None:
    """field: D1"""
    scripted = stage.play(LOOK_UP, SUNNY)
    assert run_tools(client, model, stream, chained) == "It is sunny."
    assert calls_received(scripted) == [("get_weather", '{"city":"Paris"}')]
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris")]


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_parallel_calls(stage: Stage, client: OpenAI, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP_TWICE, SUNNY)
    assert run_tools(client, model, stream, chained=True) == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris"), ("get_weather", "22 degrees in Rome")]


PATCH = '*** Begin Patch\n+ a line of "text"\n*** End Patch\n'


def patch_once(request: ModelRequest) -> list[Part]:
    """A call of the freeform tool, in whichever form the upstream was offered it."""
    (tool,) = request.tools
    freeform = tool.kind == "freeform"
    return [ToolCall(ID1, tool.name, PATCH if freeform else json.dumps({"input": PATCH}), freeform=freeform)]


@over_every_upstream
def test_a_freeform_call_streamed_in_pieces_is_noticed_whole_and_answered(
    stage: Stage, client: OpenAI, model: str
) -> None:
    scripted = stage.play(patch_once, SUNNY, pace=partial(asyncio.sleep, 0.002))
    options: Any = {"model": model, "tools": [{"type": "custom", "name": "patch"}]}
    with client.responses.stream(input="Go", **options) as streamed:
        (call,) = streamed.get_final_response().output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", PATCH)  # type: ignore[union-attr]
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}  # type: ignore[union-attr]
    history = [{"role": "user", "content": "Go"}, call.model_dump(exclude_none=True), result]
    assert client.responses.create(input=history, **options).output_text == "It is sunny."  # type: ignore[arg-type]
    assert [text for _, text in results_received(scripted)] == ["Done."]


@over_every_upstream
def test_structured_output(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(JSON_ANSWER)
    parsed = client.responses.parse(model=model, input="Who?", text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)


@over_every_upstream
def test_reasoning_is_shown(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(THOUGHT)
    with client.responses.stream(model=model, input="Hi") as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message"]


@over_every_upstream
def test_an_answer_cut_off_at_its_limit_is_incomplete(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(CUT_OFF)
    answer = client.responses.create(model=model, input="Hi", max_output_tokens=50)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@over_every_upstream
def test_failures_are_typed_errors_before_and_in_the_stream(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(UpstreamUnavailable("The model is out of order.", status=503))
    with pytest.raises(openai.APIStatusError, match="out of order"):
        client.responses.create(model=model, input="Hi")
    stage.play([Text("Half an"), UpstreamUnavailable("The model is out of order.")], pace=partial(asyncio.sleep, 0.01))
    with pytest.raises(openai.APIError, match="out of order"):
        list(client.responses.create(model=model, input="Hi", stream=True))


def test_a_kept_response_can_be_read_continued_and_deleted(stage: Stage, client: OpenAI) -> None:
    scripted = stage.play(HELLO, SUNNY)
    first = client.responses.create(model="openai_chat", input="Hi", instructions="Be brief.")
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.create(model="openai_chat", input="And?", previous_response_id=first.id)
    received = [(message.role, plain_text(message.parts)) for message in scripted.requests[1].messages]
    assert received == [("user", "Hi"), ("assistant", "Hello from the model."), ("user", "And?")]
    assert [item.type for item in client.responses.input_items.list(first.id)] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_that_was_not_kept_cannot_be_continued(stage: Stage, client: OpenAI) -> None:
    stage.play(HELLO)
    first = client.responses.create(model="openai_chat", input="Hi", store=False)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="openai_chat", input="And?", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


@over_every_upstream
def test_items_of_a_kept_response_may_be_named_by_their_ids(stage: Stage, client: OpenAI, model: str) -> None:
    """The AI SDK replays what the model said and thought this way."""
    scripted = stage.play(HELLO, SUNNY)
    (text,) = client.responses.create(model=model, input="Hi").output
    hi, then = {"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}
    references: Any = [hi, {"type": "item_reference", "id": text.id}, then]
    client.responses.create(model=model, input=references)
    received = [(message.role, plain_text(message.parts)) for message in scripted.requests[1].messages]
    assert received == [("user", "Hi"), ("assistant", "Hello from the model."), ("user", "And?")]


def test_a_reference_to_an_item_that_was_not_kept_is_refused(stage: Stage, client: OpenAI) -> None:
    stage.play(HELLO)
    (text,) = client.responses.create(model="openai_chat", input="Hi", store=False).output
    with pytest.raises(openai.BadRequestError, match="send the item itself") as caught:
        client.responses.create(model="openai_chat", input=[{"type": "item_reference", "id": str(text.id)}])
    assert caught.value.code == "item_not_found"
