"""Histories in which one turn of the model comes as several messages, as some agents send it back."""

import json
from typing import Any

import pytest

from tests.api.http_client import PATHS, ask
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text

every_upstream = pytest.mark.parametrize("upstream", UPSTREAMS)
TEXT = "Working on it."


def chat(ids: bool) -> list[dict[str, Any]]:
    """A call, a text and another call as messages of their own, then both results; Ollama's clients send no ids."""

    def call(id: str, city: str) -> dict[str, Any]:
        arguments: Any = {"city": city}
        function = {"name": "look_up", "arguments": f'{{"city": "{city}"}}' if ids else arguments}
        named = {"id": id, "type": "function"} if ids else {}
        return {"role": "assistant", "content": "", "tool_calls": [{**named, "function": function}]}

    def result(id: str, text: str) -> dict[str, Any]:
        return {"role": "tool", "content": text, **({"tool_call_id": id} if ids else {})}

    text = {"role": "assistant", "content": TEXT}
    asked = {"role": "user", "content": "Go."}
    return [asked, call("call_a", "Rome"), text, call("call_b", "Oslo"), result("call_a", "A"), result("call_b", "B")]


def messages() -> list[dict[str, Any]]:
    """The same in Anthropic's blocks."""

    def call(id: str, city: str) -> dict[str, Any]:
        block = {"type": "tool_use", "id": id, "name": "look_up", "input": {"city": city}}
        return {"role": "assistant", "content": [block]}

    results = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in (("a", "A"), ("b", "B"))]
    return [
        {"role": "user", "content": "Go."},
        call("a", "Rome"),
        {"role": "assistant", "content": TEXT},
        call("b", "Oslo"),
        {"role": "user", "content": results},
    ]


HISTORIES = {"openai_chat": chat(ids=True), "ollama": chat(ids=False), "anthropic": messages()}


@every_upstream
@pytest.mark.parametrize("client", HISTORIES)
async def test_a_split_turn_reaches_the_model_as_one_turn_with_its_results_behind(
    stage: Stage, client: str, upstream: str
) -> None:
    model = stage.play("Done.")
    body = {"model": upstream, "max_tokens": 100, "stream": False, "messages": HISTORIES[client]}
    answer = await ask(stage.url, PATHS[client], body)
    assert answer.status == 200, answer.body
    parts = [part for message in model.requests[0].messages for part in message.parts]
    given = [part for message in model.requests[0].messages if message.role == "assistant" for part in message.parts]
    assert [json.loads(part.arguments)["city"] for part in given if isinstance(part, ToolCall)] == ["Rome", "Oslo"]
    assert [part.text for part in given if isinstance(part, Text)] == [TEXT]
    results = [plain_text(part.content) for part in parts if isinstance(part, ToolResult)]
    assert results == ["A", "B"]
    roles = [message.role for message in model.requests[0].messages]
    assert roles[roles.index("tool") :] == ["tool", "tool"]


@every_upstream
@pytest.mark.parametrize("client", HISTORIES)
async def test_a_text_after_the_calls_does_not_land_behind_their_results(
    stage: Stage, client: str, upstream: str
) -> None:
    model = stage.play("Done.")
    asked, call, text, _, *results = HISTORIES[client]
    first = [{**results[0], "content": results[0]["content"][:1]}]
    body = {"model": upstream, "max_tokens": 100, "stream": False, "messages": [asked, call, text, *first]}
    answer = await ask(stage.url, PATHS[client], body)
    assert answer.status == 200, answer.body
    messages = model.requests[0].messages
    assert [part.text for part in messages[-2].parts if isinstance(part, Text)] == [TEXT]
    assert [type(part) for part in messages[-1].parts] == [ToolResult]
