"""Thousands of tools in one request, to an upstream with tools of its own and to a model that only writes text."""

from tests.laws.gateway import Gateway, size

VARIANTS = ("openai_chat", "anthropic", "ollama", "text", "promoted")


async def play(gateway: Gateway, model: str) -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "It does something useful.",
                "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
            },
        }
        for number in range(size(4_000, 10_000))
    ]
    assert (await gateway.ask("openai_chat", model, tools=tools)).status in (200, 400, 502)
