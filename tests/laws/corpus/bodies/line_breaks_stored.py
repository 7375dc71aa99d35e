"""A body of line breaks that is stored, and read again: a chat, a response, a conversation, in the background, compacted."""

import asyncio

from tests.laws.gateway import Gateway

TEXT = "\n" * 5_200_000
VARIANTS = ("chat", "response", "background", "conversation", "compacted")


async def play(gateway: Gateway, kind: str) -> None:
    if kind == "chat":
        id = (await gateway.ask("openai_chat", "openai_chat", TEXT, store=True)).json["id"]
        assert (await gateway.get(f"/v1/chat/completions/{id}/messages")).status == 200
    elif kind == "conversation":
        made = await gateway.post("/v1/conversations", {"items": [{"role": "user", "content": TEXT}]})
        items = f"/v1/conversations/{made.json['id']}/items"
        [item] = (await gateway.get(items)).json["data"]
        assert (await gateway.get(f"{items}/{item['id']}")).status == 200
        reference = {"type": "item_reference", "id": item["id"]}
        assert (await gateway.post(items, {"items": [reference]})).status == 200
    elif kind == "compacted":
        body = {"model": "openai_chat", "input": TEXT}
        assert (await gateway.post("/v1/responses/compact", body)).status == 200
    else:
        answer = await gateway.ask("openai_responses", "openai_chat", TEXT, background=kind == "background")
        assert answer.status == 200
        id = answer.json["id"]
        while (await gateway.get(f"/v1/responses/{id}")).json["status"] not in ("completed", "failed"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await gateway.get(f"/v1/responses/{id}/input_items")).status == 200
