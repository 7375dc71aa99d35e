"""Requests that continue megabytes of characters that JSON escapes, over upstreams of every dialect."""

from tests.laws.gateway import DIALECTS, Gateway, size

ESCAPED = '"' * size(2_000_000, 3_900_000)
VARIANTS = DIALECTS


async def play(gateway: Gateway, model: str) -> None:
    last: str | None = None
    for _ in range(2):
        body = {"model": "openai_chat", "input": ESCAPED, "previous_response_id": last}
        last = (await gateway.post("/v1/responses", body)).json["id"]
    answer = await gateway.post("/v1/responses", {"model": model, "input": ESCAPED, "previous_response_id": last})
    # The upstream gives all of them the answer of its own dialect, after it has received the request.
    assert answer.status == (200 if model == "openai_chat" else 502)
