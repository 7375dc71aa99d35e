"""The official OpenAI client, Chat Completions, over every upstream dialect."""

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
    JSON_ANSWER,
    LOOK_UP,
    LOOK_UP_TWICE,
    SUNNY,
    WEATHER_SCHEMA,
    calls_received,
    results_received,
    weather,
)
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text

TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": WEATHER_SCHEMA}}]
ASK: Any = [{"role": "user", "content": "How is the weather?"}]
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
    answer = client.chat.completions.create(model=model, messages=ASK)
    assert answer.choices[0].message.content == "Hello from the model."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 5)


@over_every_upstream
def test_a_streamed_text_turn_with_usage(stage: Stage, client: OpenAI, model: str) -> None:
    stage.play(HELLO)
    with client.chat.completions.stream(model=model, messages=ASK, stream_options={"include_usage": True}) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == "Hello from the model."
    assert final.usage is not None
    assert final.usage.total_tokens == 17


def run_tools(client: OpenAI, model: str, stream: bool, tools: Any = TOOLS) -> str:
    """The loop that every agent has: ask, run what is called, ask again."""
    messages = list(ASK)
    for _ in range(5):
        if stream:
            with client.chat.completions.stream(model=model, messages=messages, tools=tools) as streamed:
                for _ in streamed:
                    pass
                message: Any = streamed.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("the loop did not end")


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_round_trip(stage: Stage, client: OpenAI, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert calls_received(scripted) == [("get_weather", '{"city":"Paris"}')]
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris")]


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_parallel_calls(stage: Stage, client: OpenAI, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP_TWICE, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris"), ("get_weather", "22 degrees in Rome")]


@over_every_upstream
def test_structured_output(stage: Stage, client: OpenAI, model: str) -> None:
    scripted = stage.play(JSON_ANSWER)
    parsed = client.chat.completions.parse(model=model, messages=ASK, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    output = scripted.requests[0].settings.output
    assert output is not None
    assert output.schema is not None
    assert set(output.schema["properties"]) == {"name", "age"}


@over_every_upstream
def test_an_answer_cut_off_at_its_limit(stage: Stage, client: OpenAI, model: str) -> None:
    """field: A26"""
    scripted = stage.play(CUT_OFF)
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=50)
    assert answer.choices[0].finish_reason == "length"
    assert scripted.requests[0].settings.max_tokens == 50


@over_every_upstream
def test_an_image_reaches_the_model(stage: Stage, client: OpenAI, model: str) -> None:
    scripted = stage.play(HELLO)
    url = "data:image/png;base64,iVBORw0KGgo="
    content: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
    kinds = {type(part).__name__ for message in scripted.requests[0].messages for part in message.parts}
    assert kinds == {"Text", "Media"}


@over_every_upstream
def test_a_failure_before_the_first_byte_is_a_typed_error(stage: Stage, client: OpenAI, model: str) -> None:
    for stream in (True, False):
        stage.play(UpstreamUnavailable("The model is out of order.", status=503))
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=model, messages=ASK, stream=stream)
        assert caught.value.status_code == 503
        assert "out of order" in str(caught.value)


@over_every_upstream
def test_a_failure_in_the_middle_of_a_stream_is_raised(stage: Stage, client: OpenAI, model: str) -> None:
    """field: A27, D5"""
    stage.play([Text("Half an"), UpstreamUnavailable("The model is out of order.")], pace=partial(asyncio.sleep, 0.01))
    response = []
    with pytest.raises(openai.APIError, match="out of order"):  # noqa: PT012  # the error comes while reading
        for chunk in client.chat.completions.create(model=model, messages=ASK, stream=True):
            response.append(chunk.choices[0].delta.content or "")
    assert "".join(response).strip() == "Half an"


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nonesuch", messages=ASK)


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == list(UPSTREAMS)
    assert client.models.retrieve("anthropic").id == "anthropic"
