"""Bodies of random JSON at every path, with a key."""

import random

from tests.laws.vocabulary import PATHS, encoded, mutated, request, value

POSTED = (
    b"/v1/chat/completions",
    b"/v1/messages",
    b"/v1/messages/count_tokens",
    b"/v1/responses",
    b"/v1/responses/compact",
    b"/v1/conversations",
    b"/v1/conversations/conv_1/items",
    b"/api/chat",
    b"/api/generate",
    b"/api/show",
    b"/mcp",
)


def make(rng: random.Random) -> bytes:
    """Return a request whose body is JSON that means something or nothing."""
    content = value(rng, 4)
    if rng.random() < 0.8:
        known = {"model": "played", "messages": value(rng, 3), "input": value(rng, 3), "max_tokens": 5}
        content = {name: known[name] for name in known if rng.random() < 0.8} | (
            content if type(content) is dict else {}
        )
    body = encoded(content)
    body = mutated(rng, body, 1) if rng.random() < 0.1 else body
    headers = [b"Accept: application/json, text/event-stream"] if rng.random() < 0.5 else []
    if rng.random() < 0.1:
        return request(rng.choice((b"DELETE", b"PATCH", b"GET")), rng.choice(PATHS), *headers, body=body)
    return request(b"POST", rng.choice(POSTED), *headers, body=body)
