"""Long answers without a count of tokens, which are counted here: one word of megabytes, and many words."""

from tests.laws.gateway import Gateway, Served

VARIANTS = ("word", "words", "signs")
TEXTS = {"word": "x" * 6_000_000, "words": "some word " * 600_000, "signs": "!?" * 3_000_000}


async def play(gateway: Gateway, kind: str) -> None:
    gateway.play(
        Served(
            b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}]}'
            % TEXTS[kind].encode()
        )
    )
    assert (await gateway.ask("openai_chat", "openai_chat")).status == 200
