"""A whole answer with one text of megabytes."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(whole(upstream, Text("word " * size(1_000_000, 1_250_000))))
    await gateway.ask(client, upstream)
