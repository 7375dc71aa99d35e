"""One message of tens of thousands of parts: translated, kept, counted, and written for a model that only writes text."""

from typing import Any

from tests.laws.gateway import Gateway, size

PATHS = {
    "chat": "/v1/chat/completions",
    "kept": "/v1/chat/completions",
    "text": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "count": "/v1/messages/count_tokens",
    "responses": "/v1/responses",
    "conversation": "/v1/conversations",
}
VARIANTS = tuple(PATHS)


async def play(gateway: Gateway, way: str) -> None:
    kind = "input_text" if way in ("responses", "conversation") else "text"
    message = {"role": "user", "content": [{"type": kind, "text": "A word or two."}] * size(20_000, 45_000)}
    body: dict[str, Any] = {"model": "text" if way == "text" else "openai_chat", "messages": [message]}
    match way:
        case "kept":
            body["store"] = True
        case "anthropic":
            body["max_tokens"] = 100
        case "responses":
            body = {"model": "openai_chat", "input": [message]}
        case "conversation":
            body = {"items": [message]}
    assert (await gateway.post(PATHS[way], body)).status == 200
