"""The official Anthropic client over every upstream dialect."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool

from tests.clients.scenes import (
    CUT_OFF,
    HELLO,
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
from toolgate.conversation.message import Text

TOOLS: Any = [{"name": "get_weather", "description": "Tells the weather.", "input_schema": WEATHER_SCHEMA}]
ASK: Any = [{"role": "user", "content": "How is the weather?"}]
over_every_upstream = pytest.mark.parametrize("model", UPSTREAMS)


@beta_tool
def get_weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return weather(city)


@pytest.fixture
def client(stage: Stage) -> Iterator[Anthropic]:
    with Anthropic(base_url=stage.url, api_key="unused", max_retries=0) as client:
        yield client


@over_every_upstream
def test_a_text_turn(stage: Stage, client: Anthropic, model: str) -> None:
    stage.play(HELLO)
    answer = client.messages.create(model=model, max_tokens=100, messages=ASK)
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello from the model."]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 5


@over_every_upstream
def test_a_streamed_text_turn(stage: Stage, client: Anthropic, model: str) -> None:
    stage.play(HELLO)
    with client.messages.stream(model=model, max_tokens=100, messages=ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Hello from the model."
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 5


def run_tools(client: Anthropic, model: str, stream: bool) -> str:
    """The loop that every agent has: ask, run what is called, ask again."""
    messages = list(ASK)
    for _ in range(5):
        if stream:
            with client.messages.stream(model=model, max_tokens=100, messages=messages, tools=TOOLS) as streamed:
                message: Any = streamed.get_final_message()
        else:
            message = client.messages.create(model=model, max_tokens=100, messages=messages, tools=TOOLS)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content if block.type == "text")
        assert message.stop_reason == "tool_use"
        messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in message.content]})
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": weather(**c.input)} for c in calls]
        messages.append({"role": "user", "content": results})
    raise AssertionError("the loop did not end")


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_round_trip(stage: Stage, client: Anthropic, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert calls_received(scripted) == [("get_weather", '{"city":"Paris"}')]
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris")]


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_parallel_calls(stage: Stage, client: Anthropic, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP_TWICE, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris"), ("get_weather", "22 degrees in Rome")]


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_the_tool_runner_goes_on_without_message_threads(
    stage: Stage, client: Anthropic, model: str, stream: bool
) -> None:
    scripted = stage.play(LOOK_UP_TWICE, SUNNY)
    options: Any = {"model": model, "max_tokens": 100, "messages": ASK, "tools": [get_weather], "stream": stream}
    runner = client.beta.messages.tool_runner(**options)
    final = runner.until_done()
    assert [block.text for block in final.content if block.type == "text"] == ["It is sunny."]
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris"), ("get_weather", "22 degrees in Rome")]


@pytest.mark.parametrize("model", [upstream for upstream in UPSTREAMS if upstream != "ollama"])
def test_thinking_comes_back_to_the_model_that_thought(stage: Stage, client: Anthropic, model: str) -> None:
    """field: C1, C11"""
    scripted = stage.play(THOUGHT, HELLO)
    with client.messages.stream(model=model, max_tokens=4000, messages=ASK) as stream:
        first = stream.get_final_message()
    assert [block.type for block in first.content] == ["thinking", "text"]
    history: Any = [
        *ASK,
        {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]},
        *ASK,
    ]
    client.messages.create(model=model, max_tokens=4000, messages=history)
    parts = [part for message in scripted.requests[1].messages for part in message.parts]
    assert "Done." in [part.text for part in parts if isinstance(part, Text)]


@over_every_upstream
def test_an_answer_cut_off_at_its_limit(stage: Stage, client: Anthropic, model: str) -> None:
    """field: A26"""
    stage.play(CUT_OFF)
    assert client.messages.create(model=model, max_tokens=50, messages=ASK).stop_reason == "max_tokens"


@over_every_upstream
def test_a_failure_before_the_first_byte_is_a_typed_error(stage: Stage, client: Anthropic, model: str) -> None:
    stage.play(UpstreamUnavailable("The model is out of order.", status=503))
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model=model, max_tokens=100, messages=ASK)
    assert caught.value.status_code == 503
    assert "out of order" in str(caught.value)


@over_every_upstream
def test_a_failure_in_the_middle_of_a_stream_is_raised(stage: Stage, client: Anthropic, model: str) -> None:
    """field: A27"""
    stage.play([Text("Half an"), UpstreamUnavailable("The model is out of order.")])
    with (
        pytest.raises(anthropic.APIError, match="out of order"),
        client.messages.stream(model=model, max_tokens=100, messages=ASK) as stream,
    ):
        list(stream)


def test_tokens_are_counted(client: Anthropic) -> None:
    short = client.messages.count_tokens(model="openai_chat", messages=ASK).input_tokens
    tooled = client.messages.count_tokens(model="openai_chat", messages=ASK, tools=TOOLS).input_tokens
    assert 5 < short < tooled < 200


def test_models_are_listed_in_anthropics_shape(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == list(UPSTREAMS)
    assert client.models.retrieve("ollama").display_name == "ollama"
