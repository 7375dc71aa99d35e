"""Ten megabytes that are searched for their limits, and hashed for an Idempotency-Key."""

from tests.laws.gateway import PATHS, Gateway, chat_answer

BODY = b'{"model":"openai_chat","max_tokens":5,"messages":[{"role":"user","content":"' + b"x" * 10_000_000 + b'"}]}'


async def play(gateway: Gateway) -> None:
    gateway.play(chat_answer())
    for _ in range(2):
        answered = await gateway.post(PATHS["openai_chat"], BODY, "idempotency-key: ten-megabytes")
        assert answered.status == 200
