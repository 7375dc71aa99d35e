"""A stream with a text of megabytes that JSON escapes, of a response in the background that is stored at its end."""

import asyncio

from tests.laws.answers import streamed
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text


async def play(gateway: Gateway) -> None:
    gateway.play(streamed("anthropic", Text('"' * 16_000), times=size(200, 390)))
    id = (await gateway.ask("openai_responses", "anthropic", background=True)).json["id"]
    while (await gateway.get(f"/v1/responses/{id}")).json["status"] != "completed":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
