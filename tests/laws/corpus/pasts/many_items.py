"""A response of ten thousand input items, gone on with by id, and listed."""

from tests.laws.gateway import Gateway


async def play(gateway: Gateway) -> None:
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}] * 5_000
    response = await gateway.ask("openai_responses", "openai_chat", input=[*items, items[0]])
    if response.status != 200:
        assert response.status == 400
        return
    id = response.json["id"]
    await gateway.ask("openai_responses", "openai_chat", previous_response_id=id)
    await gateway.get(f"/v1/responses/{id}/input_items?limit=100")
