"""What a person would try first, with curl, in each of the four client APIs."""

import json
from typing import Any

import pytest

from tests.api.http_client import ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER_TOOLS = {"tool_execution": "auto", "use_server_tools": ["calculator", "clock"]}
SUM = "What is 17 * 23? Use the calculator."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city."}},
    "required": ["city"],
}


def question(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def answered(url: str, path: str, body: dict[str, Any]) -> Any:
    response = await ask(url, path, {"model": "local", **body})
    assert response.status == 200, response.body
    return response.json


async def test_chat_completions_answers_from_the_calculator(url: str) -> None:
    """spec: C1, X2"""
    output = await answered(url, "/v1/chat/completions", {"messages": question(SUM), **SERVER_TOOLS})
    assert "391" in output["choices"][0]["message"]["content"]
    assert output["usage"]["prompt_tokens"] > 50


async def test_chat_completions_streams_words_as_they_are_written(url: str) -> None:
    """spec: C2"""
    body = {
        "model": "local",
        "messages": question("Count from one to five in words."),
        "stream": True,
        "max_tokens": 20,
    }
    response = await ask(url, "/v1/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in response.body.split(b"\n\n") if line.startswith(b"data: {")]
    words = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    assert len([word for word in words if word]) > 2
    assert response.body.rstrip().endswith(b"data: [DONE]")


async def test_responses_looks_at_the_clock(url: str) -> None:
    """spec: C3"""
    output = await answered(url, "/v1/responses", {"input": "What time is it in Tokyo now?", **SERVER_TOOLS})
    called = [item for item in output["output"] if item["type"] == "mcp_call"]
    assert [item["name"] for item in called] == ["clock"]
    assert "Tokyo" in called[0]["arguments"]
    assert output["output"][-1]["content"][0]["text"]


async def test_anthropic_calls_the_clients_tool_and_answers_from_its_result(url: str) -> None:
    """spec: C4, X1"""
    tools = [{"name": "get_weather", "description": "Tells the weather in a city.", "input_schema": WEATHER}]
    asked = question("How is the weather in Oslo today?")
    output = await answered(url, "/v1/messages", {"max_tokens": 200, "messages": asked, "tools": tools})
    [use] = output["content"]
    assert (output["stop_reason"], use["name"], use["input"]) == ("tool_use", "get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "Snow, minus 7 degrees."}
    later = [*asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    output = await answered(url, "/v1/messages", {"max_tokens": 200, "messages": later, "tools": tools})
    assert output["stop_reason"] == "end_turn"
    assert "7" in output["content"][0]["text"]


async def test_ollama_answers_from_the_calculator(url: str) -> None:
    """spec: C5"""
    output = await answered(url, "/api/chat", {"messages": question(SUM), "stream": False, **SERVER_TOOLS})
    assert "391" in output["message"]["content"]


async def test_no_tool_is_called_where_none_is_needed(url: str) -> None:
    tools = [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}}
    ]
    body = {"messages": question("Write one sentence about cats."), "tools": tools, "max_tokens": 60}
    output = await answered(url, "/v1/chat/completions", body)
    assert not output["choices"][0]["message"].get("tool_calls")
    assert "cat" in output["choices"][0]["message"]["content"].lower()


async def test_an_answer_by_schema_keeps_to_it(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    body = {"messages": question("Anna is 31 years old. Give her name and age."), "response_format": form}
    output = await answered(url, "/v1/chat/completions", body)
    assert json.loads(output["choices"][0]["message"]["content"]) == {"name": "Anna", "age": 31}
