"""Tools that a client sends with every request, as agents do: what is cached of them changes no request."""

from typing import Any

import pytest

from tests.api.http_client import PATHS, ask
from tests.stage import UPSTREAMS, Stage

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "a: b"}}, "required": ["city"]}


def tool(client: str, name: str) -> dict[str, Any]:
    """A tool as a client of this dialect defines it."""
    if client == "anthropic":
        return {"name": name, "description": "Look it up.", "input_schema": SCHEMA}
    return {"type": "function", "function": {"name": name, "description": "Look it up.", "parameters": SCHEMA}}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
async def test_the_same_tools_reach_the_model_every_time(stage: Stage, client: str, upstream: str) -> None:
    model = stage.play(*["Done."] * 4)
    asked = [{"role": "user", "content": "Hi"}]
    names = [["look_up"], ["look_up"], ["a.name.that.is.changed", "look_up"], ["look_up"]]
    for offered in names:
        tools = [tool(client, name) for name in offered]
        body = {"model": upstream, "max_tokens": 100, "stream": False, "messages": asked, "tools": tools}
        answer = await ask(stage.url, PATHS[client], body)
        assert answer.status == 200, answer.body
    assert [len(request.tools) for request in model.requests] == [1, 1, 2, 1]
    first, again, other, last = [request.tools for request in model.requests]
    assert first == again == last
    assert other[1] == first[0]
    assert first[0].input_schema == SCHEMA


@pytest.mark.parametrize("client", ["openai_chat", "anthropic"])
async def test_a_tool_that_is_refused_is_refused_every_time(stage: Stage, client: str) -> None:
    schema = {"type": 7}
    function = {"name": "look_up", "parameters": schema}
    bad = (
        {"name": "look_up", "input_schema": schema}
        if client == "anthropic"
        else {"type": "function", "function": function}
    )
    body = {"model": "openai_chat", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], "tools": [bad]}
    answers = [await ask(stage.url, PATHS[client], body) for _ in range(3)]
    assert [answer.status for answer in answers] == [400, 400, 400]
    assert len({answer.json["error"]["message"] for answer in answers}) == 1


async def test_each_api_reads_the_same_tools_in_its_own_way(stage: Stage) -> None:
    stage.play("Done.")
    asked = [{"role": "user", "content": "Hi"}]
    body = {"model": "openai_chat", "max_tokens": 100, "messages": asked, "tools": [tool("anthropic", "look_up")]}
    statuses = [(await ask(stage.url, PATHS[client], body)).status for client in ("anthropic", "openai_chat")]
    assert statuses == [200, 400]
