"""Thousands of calls and their results in one history, which are matched by id."""

import json
from typing import Any

from tests.laws.gateway import DIALECTS, Gateway, size

VARIANTS = DIALECTS


def _turn(client: str, number: int) -> list[dict[str, Any]]:
    id = f"call_{number}"
    match client:
        case "openai_chat":
            call = {"id": id, "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
            return [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": "here"},
            ]
        case "openai_responses":
            return [
                {"type": "function_call", "call_id": id, "name": "look", "arguments": '{"at": 1}'},
                {"type": "function_call_output", "call_id": id, "output": "here"},
            ]
        case "anthropic":
            return [
                {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {"at": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "here"}]},
            ]
        case _:
            call = {"function": {"name": "look", "arguments": {"at": 1}}}
            return [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "look", "content": "here"},
            ]


async def play(gateway: Gateway, client: str) -> None:
    turns = [message for number in range(size(4_000, 10_000)) for message in _turn(client, number)]
    field = "input" if client == "openai_responses" else "messages"
    body: Any = [{"role": "user", "content": "Hi"}, *turns]
    assert len(json.dumps(body)) < 10_000_000
    upstream = DIALECTS[DIALECTS.index(client) - 1]
    for model in (client, upstream):
        response = await gateway.ask(client, model, **{field: body})
        assert response.status in (200, 400, 502)
