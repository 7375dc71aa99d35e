"""As many messages as a request may have, in each dialect."""

from tests.laws.gateway import DIALECTS, PATHS, Gateway

VARIANTS = DIALECTS


async def play(gateway: Gateway, client: str) -> None:
    field = "input" if client == "openai_responses" else "messages"
    messages = [{"role": "user", "content": "word " * 100}] * 9_999
    body = {"model": "openai_chat", "stream": False, "max_tokens": 100, field: messages}
    if client == "openai_responses":
        del body["max_tokens"]
    assert (await gateway.post(PATHS[client], body)).status == 200
