"""Names of megabytes: the model, the tools, the roles, the ids."""

from typing import Any

from tests.laws.gateway import Gateway

LONG = "n" * 4_000_000
VARIANTS = ("model", "tool", "role", "id", "stop")


async def play(gateway: Gateway, kind: str) -> None:
    more: dict[str, Any] = {}
    if kind == "tool":
        more["tools"] = [{"type": "function", "function": {"name": LONG, "parameters": {}}}]
    elif kind == "role":
        more["messages"] = [{"role": LONG, "content": "Hi"}]
    elif kind == "id":
        more["messages"] = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": LONG, "content": "x"}]
    elif kind == "stop":
        more["stop"] = [LONG]
    response = await gateway.ask("openai_chat", LONG if kind == "model" else "anthropic", **more)
    assert response.status in (200, 400, 404, 502)
