"""Paths that name one object by thousands of characters, of letters, escapes, dots and signs of patterns."""

from tests.laws.gateway import Gateway

VARIANTS = (
    "GET /v1/models/{}",
    "GET /v1/responses/{}",
    "DELETE /v1/responses/{}",
    "GET /v1/responses/{}/input_items",
    "GET /v1/conversations/{}",
    "DELETE /v1/conversations/{}",
    "GET /v1/conversations/{}/items",
    "GET /v1/conversations/{}/items/{}",
    "DELETE /v1/conversations/{}/items/{}",
    "GET /v1/chats/{}",
    "DELETE /v1/chats/{}",
    "GET /v1/chats/{}/messages",
    "GET /v1/chat/completions/{}",
    "DELETE /v1/chat/completions/{}",
    "GET /v1/chat/completions/{}/messages",
    "GET /v1/requests/{}",
    "GET /v1/runs/{}",
    "GET /v1/tools/{}",
    "DELETE /v1/tools/{}",
    "GET /v1/approvals/{}",
    "GET /v1/keys/{}",
    "DELETE /v1/keys/{}",
)
IDS = ("x" * 3_900, "%F0%9F%92%A9" * 320, "%00" * 1_300, "*a" * 1_900, "..%2F" * 780, "%ED%A0%80" * 430)


async def play(gateway: Gateway, route: str) -> None:
    method, path = route.split()
    for id in IDS:
        answer = await gateway.request(method, path.replace("{}", id))
        assert answer.status in (400, 404), answer
