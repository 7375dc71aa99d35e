"""A hundred thousand references to items that do not exist, and as many to one that does."""

from tests.laws.gateway import Gateway

VARIANTS = ("absent", "present")


async def play(gateway: Gateway, kind: str) -> None:
    response = await gateway.ask("openai_responses", "openai_chat")
    id = response.json["output"][0]["id"] if kind == "present" else "msg_absent"
    references = [{"type": "item_reference", "id": id if kind == "present" else f"{id}{n}"} for n in range(100_000)]
    response = await gateway.ask("openai_responses", "openai_chat", input=references)
    assert response.status in (200, 400, 404, 413)
