"""A message of ten megabytes in one string, in each dialect."""

from tests.laws.gateway import DIALECTS, Gateway

VARIANTS = DIALECTS


async def play(gateway: Gateway, client: str) -> None:
    assert (await gateway.ask(client, "openai_chat", "x" * 10_000_000)).status == 200
