"""A body of line breaks that is stored: as a chat, as a response, for the background, in a conversation, and compacted."""

import asyncio

from tests.laws.gateway import Gateway

TEXT = "\n" * 5_200_000
VARIANTS = ("chat", "response", "background", "conversation", "compacted")


async def play(gateway: Gateway, kind: str) -> None:
    if kind == "chat":
        assert (await gateway.ask("openai_chat", "openai_chat", TEXT, store=True)).status == 200
    elif kind == "conversation":
        item = {"role": "user", "content": TEXT}
        assert (await gateway.post("/v1/conversations", {"items": [item]})).status == 200
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
