"""LangChain agents through the three chat model classes, over every upstream dialect."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from tests.clients.scenes import LOOK_UP, LOOK_UP_TWICE, SUNNY, results_received, weather
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.events import ModelResponse

pytestmark = pytest.mark.filterwarnings("ignore")


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return weather(city)


def chat_model(kind: str, stage: Stage, model: str) -> BaseChatModel:
    if kind == "openai":
        return ChatOpenAI(base_url=f"{stage.url}/v1", api_key="unused", model=model, max_retries=0)  # type: ignore[arg-type]
    if kind == "responses":
        base = f"{stage.url}/v1"
        return ChatOpenAI(base_url=base, api_key="unused", model=model, use_responses_api=True)  # type: ignore[arg-type]
    if kind == "anthropic":
        return ChatAnthropic(base_url=stage.url, api_key="unused", model=model, max_tokens=200)  # type: ignore[call-arg,arg-type]
    return ChatOllama(base_url=stage.url, model=model)


@pytest.mark.parametrize("model", UPSTREAMS)
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "ollama"])
@pytest.mark.parametrize("scene", [LOOK_UP, LOOK_UP_TWICE], ids=["one_call", "parallel_calls"])
def test_an_agent_runs_its_tools_to_the_answer(stage: Stage, kind: str, model: str, scene: ModelResponse) -> None:
    scripted = stage.play(scene, SUNNY)
    agent: Any = create_agent(chat_model(kind, stage, model), [get_weather])
    final = agent.invoke({"messages": [{"role": "user", "content": "How is the weather?"}]})
    assert final["messages"][-1].text == "It is sunny."
    assert results_received(scripted)[0] == ("get_weather", "22 degrees in Paris")


@pytest.mark.parametrize("model", UPSTREAMS)
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "ollama"])
def test_an_agent_streams(stage: Stage, kind: str, model: str) -> None:
    stage.play(LOOK_UP, SUNNY)
    agent: Any = create_agent(chat_model(kind, stage, model), [get_weather])
    question = {"messages": [{"role": "user", "content": "How is the weather?"}]}
    pieces = [piece for piece, _ in agent.stream(question, stream_mode="messages")]
    assert "It is sunny." in "".join(piece.text for piece in pieces if piece.type == "AIMessageChunk")
