"""Long histories for a model that only writes text: they are written into a prompt."""

from typing import Any

from tests.laws.gateway import Gateway, size

VARIANTS = ("turns", "results", "marks")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def play(gateway: Gateway, kind: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    for number in range(size(1_500, 4_000) if kind == "turns" else 4):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
        content = {
            "turns": "here",
            "results": "line\n" * size(200_000, 400_000),
            "marks": "<invoke>" * size(100_000, 250_000),
        }[kind]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": content},
        ]
    response = await gateway.ask("openai_chat", "text", messages=messages, tools=[TOOL])
    assert response.status in (200, 400)
