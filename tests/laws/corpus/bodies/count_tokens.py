"""Ten megabytes whose tokens are to be counted: one word, many words, signs."""

from tests.laws.gateway import Gateway

TEXTS = {"word": "x" * 9_000_000, "words": "some word " * 900_000, "signs": "!?" * 4_500_000, "blank": " " * 9_000_000}
VARIANTS = tuple(TEXTS)


async def play(gateway: Gateway, kind: str) -> None:
    body = {"model": "anthropic", "messages": [{"role": "user", "content": TEXTS[kind]}]}
    assert (await gateway.post("/v1/messages/count_tokens", body)).status in (200, 413, 502)
