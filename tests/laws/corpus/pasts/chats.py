"""Chats of megabytes that are kept, listed and shown."""

from tests.laws.gateway import Gateway


async def play(gateway: Gateway) -> None:
    for _ in range(3):
        response = await gateway.ask("openai_chat", "openai_chat", "x" * 4_000_000, store=True)
        assert response.status in (200, 413)
    listed = (await gateway.get("/v1/chats?limit=100")).json["data"]
    for chat in listed[:3]:
        await gateway.get(f"/v1/chats/{chat['id']}")
        await gateway.get(f"/v1/chats/{chat['id']}/messages?limit=100")
    await gateway.get("/v1/chat/completions?limit=100")
