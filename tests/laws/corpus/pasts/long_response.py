"""A chain of stored responses of megabytes each, gone on with by id, and its items listed."""

from typing import Any

from tests.laws.gateway import Gateway


async def play(gateway: Gateway) -> None:
    previous: dict[str, Any] = {}
    for _ in range(4):
        response = await gateway.ask("openai_responses", "openai_chat", "x" * 4_000_000, **previous)
        if response.status != 200:
            assert response.status in (400, 413)
            break
        previous = {"previous_response_id": response.json["id"]}
    await gateway.ask("openai_responses", "openai_chat", **previous)
    await gateway.get(f"/v1/responses/{previous['previous_response_id']}/input_items?limit=100")
    await gateway.get(f"/v1/responses/{previous['previous_response_id']}")
