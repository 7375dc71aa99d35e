"""Megabytes of line breaks, which are slow to encode, in a request that is not stored and whose tools the server runs."""

from tests.laws.gateway import Gateway, chat_answer, size


async def play(gateway: Gateway) -> None:
    gateway.play(chat_answer())
    messages = [{"role": "user", "content": "\n" * size(2_500_000, 5_000_000)}]
    assert (await gateway.ask_with_tools(messages=messages, store=False)).status == 200
