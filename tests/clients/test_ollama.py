"""The official Ollama client over every upstream dialect."""

from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.clients.scenes import HELLO, LOOK_UP, LOOK_UP_TWICE, SUNNY, WEATHER_SCHEMA, results_received, weather
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text

TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": WEATHER_SCHEMA}}
]
ASK: Any = [{"role": "user", "content": "How is the weather?"}]
over_every_upstream = pytest.mark.parametrize("model", UPSTREAMS)


@pytest.fixture
def client(stage: Stage) -> Iterator[ollama.Client]:
    with ollama.Client(host=stage.url) as client:
        yield client


@over_every_upstream
def test_a_text_turn(stage: Stage, client: ollama.Client, model: str) -> None:
    stage.play(HELLO)
    answer = client.chat(model=model, messages=ASK)
    assert answer.message.content == "Hello from the model."
    assert (answer.done, answer.done_reason, answer.eval_count, answer.prompt_eval_count) == (True, "stop", 5, 12)


@over_every_upstream
def test_a_streamed_text_turn(stage: Stage, client: ollama.Client, model: str) -> None:
    stage.play(HELLO)
    chunks = list(client.chat(model=model, messages=ASK, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == "Hello from the model."
    assert [chunk.done for chunk in chunks].count(True) == 1
    assert len(chunks) > 3


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_generate(stage: Stage, client: ollama.Client, model: str, stream: bool) -> None:
    stage.play(HELLO)
    if stream:
        output = "".join(chunk.response or "" for chunk in client.generate(model=model, prompt="Hi", stream=True))
    else:
        output = client.generate(model=model, prompt="Hi").response or ""
    assert output == "Hello from the model."


def run_tools(client: ollama.Client, model: str, stream: bool) -> str:
    """The loop that every agent has; Ollama's results carry no ids."""
    messages = list(ASK)
    for _ in range(5):
        if stream:
            chunks = list(client.chat(model=model, messages=messages, tools=TOOLS, stream=True))
            content = "".join(chunk.message.content or "" for chunk in chunks)
            calls = [call for chunk in chunks for call in chunk.message.tool_calls or []]
        else:
            message = client.chat(model=model, messages=messages, tools=TOOLS).message
            content, calls = message.content or "", list(message.tool_calls or [])
        if not calls:
            return content
        messages.append({"role": "assistant", "content": content, "tool_calls": [c.model_dump() for c in calls]})
        for call in calls:
            result = weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    raise AssertionError("the loop did not end")


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_round_trip(stage: Stage, client: ollama.Client, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris")]


@over_every_upstream
@pytest.mark.parametrize("stream", [True, False])
def test_parallel_calls(stage: Stage, client: ollama.Client, model: str, stream: bool) -> None:
    scripted = stage.play(LOOK_UP_TWICE, SUNNY)
    assert run_tools(client, model, stream) == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees in Paris"), ("get_weather", "22 degrees in Rome")]


@over_every_upstream
def test_failures_are_typed_errors_before_and_in_the_stream(stage: Stage, client: ollama.Client, model: str) -> None:
    stage.play(UpstreamUnavailable("The model is out of order.", status=503))
    with pytest.raises(ollama.ResponseError, match="out of order") as caught:
        client.chat(model=model, messages=ASK)
    assert caught.value.status_code == 503
    stage.play([Text("Half an"), UpstreamUnavailable("The model is out of order.")])
    with pytest.raises(ollama.ResponseError, match="out of order"):
        list(client.chat(model=model, messages=ASK, stream=True))


def test_models_are_listed_and_shown(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == list(UPSTREAMS)
    shown = client.show("openai_chat")
    assert shown.capabilities is not None
    assert "tools" in shown.capabilities
    assert client.ps().models
