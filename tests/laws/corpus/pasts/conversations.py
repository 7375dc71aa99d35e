"""A conversation that is filled with items and used."""

from tests.laws.gateway import Gateway


async def play(gateway: Gateway) -> None:
    made = await gateway.post("/v1/conversations", {"metadata": {}})
    id = made.json["id"]
    for size, count in ((10, 20), (400_000, 20)):
        items = [{"type": "message", "role": "user", "content": "x" * size}] * count
        await gateway.post(f"/v1/conversations/{id}/items", {"items": items})
    await gateway.get(f"/v1/conversations/{id}/items?limit=100")
    await gateway.ask("openai_responses", "openai_chat", conversation=id)
    await gateway.request("DELETE", f"/v1/conversations/{id}")
